/* A server of gRPC over cleartext HTTP/2: calls and connections as Python sees them.
 *
 * nghttp2 keeps the protocol. Here bytes of its DATA frames become messages, each in one `bytes`
 * object that it is copied into once, and answers become frames. Nothing here knows a method, reads
 * a clock or starts a thread; Python's lock is held throughout.
 */
#ifndef FERMATA_EDGE_H
#define FERMATA_EDGE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <nghttp2/nghttp2.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Kinds of events, in the order of module.c's names. */
enum { BEGUN, MESSAGE, COMPRESSED, TOO_LARGE, ENDED, CLOSED, DRAINED };

enum {
    PREFIX = 5,               /* Bytes before each message: a flag, and its length. */
    HEADERS_MAX = 16 << 10,   /* Of one call, with 32 bytes for each as HTTP/2 counts them. */
    UNREAD_MAX = 16,          /* Messages of a call that Python has not asked for. */
    PIECE = 256 << 10,        /* Memory of a message that is not given all at once. */
    WINDOW = 1 << 20,         /* Of a call; a connection has eight times as much. */
    FRAME_MAX = 1 << 20,
    OUTPUT_MAX = 64 << 10,    /* Bytes that are written at once. */
    QUEUE_MAX = 1000,         /* Frames waiting to leave, beyond which nothing is read. */
    RESETS_BURST = 1000,
    ANSWER_COST = 1 << 10,    /* Allowance for each answer that waits, however small. */
    PENDING_LOW = 16 << 10,   /* Unsent bytes of a call at which it takes more. */
};

typedef struct Call Call;
typedef struct Connection Connection;
typedef struct Server Server;

struct Connection {
    PyObject_HEAD
    nghttp2_session *http2;
    PyObject *peer;
    PyObject *events;
    Call *calls;
    Server *server;
    Connection *next, *next_dirty;
    Py_ssize_t message_max;
    char *unsent; /* What the socket did not take. */
    size_t unsent_size;
    size_t held; /* Bytes of messages that have come and were not read. */
    size_t promised; /* Memory that was given to messages before they came. */
    int64_t opened_ms, received_ms, pinged_ms, left_ms, shut_ms, age_ms, idle_ms;
    int fd, open_calls, begun, watched;
    char is_dirty, dead, greeted, told, shut, paused;
};

struct Server {
    PyObject_HEAD
    PyObject *events;
    Connection *connections, *dirty;
    int epoll, listener, count, count_max, calls_max, number;
    char listens;
    Py_ssize_t message_max;
    size_t held, held_max;
    int paused;
    int64_t now_ms, handshake_ms, idle_ms, age_ms, grace_ms, ping_ms, pong_ms;
    char *input, *output;
};

struct Call {
    PyObject_HEAD
    Connection *connection; /* NULL once the stream has ended. */
    Call *before, *after;
    PyObject *path, *headers, *timeout, *encoding, *peer, *context;
    PyObject *message, *trailers;
    PyObject *pieces; /* Of a large message: those that are full. */
    PyObject **out;
    char *backlog; /* Bytes behind UNREAD_MAX messages, as they came. */
    size_t backlog_size, backlog_capacity, header_size;
    size_t have, need, in_pieces, promised, ungranted, unread, pending;
    size_t held; /* Bytes that have come and were not read. */
    size_t out_first, out_last, out_capacity, out_at;
    int32_t id;
    uint8_t prefix[PREFIX], prefix_size;
    char is_post, is_grpc, too_many_headers, announced, ended, end_told, ignored;
    char responded, deferred, finishing, waiting;
};

extern PyTypeObject CallType, ConnectionType, ServerType;

/* session.c: frames and messages. Functions return -1 where the connection cannot go on. */
int session_ready(void);
int session_open(Connection *self, uint32_t calls_max);
int session_receive(Connection *self, const uint8_t *data, size_t size);
Py_ssize_t session_output(Connection *self, char *buffer, size_t room);
void session_end_calls(Connection *self);
void session_leave(Connection *self);

/* connection.c */
PyObject *events_take(PyObject *events);
Connection *connection_open(PyObject *events, PyObject *peer, Py_ssize_t message_max,
                            uint32_t calls_max);
void connection_close(Connection *self);
int connection_is_over(Connection *self);
void connection_touch(Connection *self);
void connection_hold(Connection *self, size_t more, size_t less);

/* call.c */
int call_message_bytes(Call *call, const uint8_t *data, size_t size);
int call_end(Call *call);
int call_event(Call *call, int kind, PyObject *data);
ssize_t call_output(Call *call, uint8_t *buffer, size_t room, uint32_t *flags);

#endif
