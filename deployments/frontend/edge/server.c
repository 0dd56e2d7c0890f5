/* A server: connections of one listening socket, on one file descriptor of epoll. */
#include "edge.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    READ_SIZE = 256 << 10,
    READS = 2,          /* Of a connection, before others have their turn. */
    BEGUN_MAX = 64,     /* One that has begun more calls waits, too. */
    ACCEPTED_MAX = 64,
    EVENTS_MAX = 64,
    HELD_MIN = 64 << 10, /* A connection that holds less is read in any case. */
    SHUT_MS = 2000,     /* A client may take so long to see that its connection ends. */
    NOTICE_MS = 1000,   /* And to answer that it heard so. */
};

static void watch(Connection *self, int events)
{
    if (self->watched == events)
        return;
    struct epoll_event event = {.events = (uint32_t)events, .data.ptr = self};
    self->watched = events;
    if (epoll_ctl(self->server->epoll, EPOLL_CTL_MOD, self->fd, &event) < 0)
        self->dead = 1;
}

/* Write what waits; returns whether the socket took all of it. */
static int write_unsent(Connection *self)
{
    ssize_t sent = send(self->fd, self->unsent, self->unsent_size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        self->dead = errno != EAGAIN && errno != EINTR;
        return 0;
    }
    self->unsent_size -= (size_t)sent;
    if (self->unsent_size) {
        memmove(self->unsent, self->unsent + sent, self->unsent_size);
        return 0;
    }
    free(self->unsent);
    self->unsent = NULL;
    return 1;
}

static int write_new(Connection *self, const char *data, size_t size)
{
    ssize_t sent = send(self->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            self->dead = 1;
            return 0;
        }
        sent = 0;
    }
    if ((size_t)sent == size)
        return 1;
    self->unsent_size = size - (size_t)sent;
    self->unsent = malloc(self->unsent_size);
    if (self->unsent == NULL) {
        self->dead = 1;
        return 0;
    }
    memcpy(self->unsent, data + sent, self->unsent_size);
    return 0;
}

/* Write what can be written now, and nothing more while the client does not read. */
static void flush_one(Connection *self)
{
    int all = self->unsent == NULL || write_unsent(self);
    while (all && !self->dead) {
        Py_ssize_t size = session_output(self, self->server->output, OUTPUT_MAX);
        if (size < 0)
            self->dead = 1;
        if (size <= 0)
            break;
        all = write_new(self, self->server->output, (size_t)size);
    }
    if (self->dead)
        return;
    if (all && !self->shut && connection_is_over(self)) {
        /* With bytes left unread, a close would take back what the client has not seen yet. */
        self->shut = 1;
        self->shut_ms = self->server->now_ms;
        if (shutdown(self->fd, SHUT_WR) < 0)
            self->dead = 1;
    }
    int pauses = self->server->held > self->server->held_max && self->held > HELD_MIN;
    self->server->paused += pauses - self->paused;
    self->paused = (char)pauses;
    int reads = all || nghttp2_session_get_outbound_queue_size(self->http2) < QUEUE_MAX;
    reads = reads && !pauses;
    watch(self, (reads ? EPOLLIN : 0) | (all ? 0 : EPOLLOUT));
}

static void read_one(Connection *self)
{
    Server *server = self->server;
    self->begun = 0;
    for (int i = 0; i < READS && self->begun < BEGUN_MAX; i++) {
        ssize_t size = recv(self->fd, server->input, READ_SIZE, MSG_DONTWAIT);
        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (size <= 0) {
            self->dead = 1;
            break;
        }
        self->received_ms = server->now_ms;
        if (self->shut)
            continue;
        if (session_receive(self, (uint8_t *)server->input, (size_t)size) < 0) {
            self->dead = 1;
            break;
        }
        if (size < READ_SIZE)
            break;
    }
    connection_touch(self);
}

static PyObject *peer_name(const struct sockaddr_storage *address)
{
    char text[INET6_ADDRSTRLEN] = "";
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const void *)address;
        inet_ntop(AF_INET, &four->sin_addr, text, sizeof text);
        return PyUnicode_FromFormat("ipv4:%s:%d", text, (int)ntohs(four->sin_port));
    }
    const struct sockaddr_in6 *six = (const void *)address;
    int port = ntohs(six->sin6_port);
    if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
        inet_ntop(AF_INET, (const uint8_t *)&six->sin6_addr + 12, text, sizeof text);
        return PyUnicode_FromFormat("ipv4:%s:%d", text, port);
    }
    inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text);
    return PyUnicode_FromFormat("ipv6:%%5B%s%%5D:%d", text, port);
}

static void listen_again(Server *server, int on)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (server->listens == on || server->listener < 0)
        return;
    epoll_ctl(server->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, server->listener, &event);
    server->listens = (char)on;
}

static void add_connection(Server *server, int fd, const struct sockaddr_storage *address)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    PyObject *peer = peer_name(address);
    Connection *self = peer == NULL ? NULL
                                    : connection_open(server->events, peer, server->message_max,
                                                      (uint32_t)server->calls_max);
    Py_XDECREF(peer);
    if (self == NULL) {
        PyErr_Clear();
        close(fd);
        return;
    }
    self->fd = fd;
    self->server = server;
    self->opened_ms = self->received_ms = server->now_ms;
    /* Those that came together must not leave together. */
    server->number = (server->number + 1) % 16;
    self->age_ms = server->age_ms * (120 + server->number) / 128;
    self->watched = EPOLLIN;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = self};
    if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        self->server = NULL;
        Py_DECREF(self);
        return;
    }
    self->next = server->connections;
    server->connections = self;
    server->count++;
    connection_touch(self);
}

static void accept_some(Server *server)
{
    for (int i = 0; i < ACCEPTED_MAX; i++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        int fd = accept4(server->listener, (struct sockaddr *)&address, &size,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                /* The next look tries again: until then there is nothing but waiting. */
                listen_again(server, 0);
            return;
        }
        if (server->count >= server->count_max)
            close(fd);
        else
            add_connection(server, fd, &address);
    }
}

/* Forget connections that have ended. */
static void reap(Server *server)
{
    Connection **place = &server->connections;
    while (*place != NULL) {
        Connection *self = *place;
        if (!self->dead || self->is_dirty) {
            place = &self->next;
            continue;
        }
        *place = self->next;
        server->count--;
        server->paused -= self->paused;
        connection_close(self);
        self->server = NULL;
        Py_DECREF(self);
    }
}

static PyObject *server_flush(Server *server, PyObject *unused)
{
    (void)unused;
    int ended = 0;
    while (server->dirty != NULL) {
        Connection *self = server->dirty;
        server->dirty = self->next_dirty;
        self->is_dirty = 0;
        if (!self->dead)
            flush_one(self);
        ended |= self->dead;
    }
    if (ended)
        reap(server);
    return events_take(server->events);
}

static int take_now(Server *server, PyObject *given)
{
    long long now = PyLong_AsLongLong(given);
    if (now == -1 && PyErr_Occurred())
        return -1;
    server->now_ms = now;
    return 0;
}

/* Have connections read again that were not, once little enough is held. */
static void resume(Server *server)
{
    if (server->paused == 0 || server->held > server->held_max)
        return;
    for (Connection *self = server->connections; self != NULL; self = self->next) {
        if (self->paused)
            connection_touch(self);
    }
}

static PyObject *server_poll(Server *server, PyObject *now_ms)
{
    if (take_now(server, now_ms) < 0)
        return NULL;
    struct epoll_event found[EVENTS_MAX];
    int count = epoll_wait(server->epoll, found, EVENTS_MAX, 0);
    resume(server);
    for (int i = 0; i < count; i++) {
        Connection *self = found[i].data.ptr;
        if (self == NULL)
            accept_some(server);
        else if (found[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
            read_one(self);
        else
            connection_touch(self);
    }
    return events_take(server->events);
}

/* Hold a connection to its times. */
static void look_at(Server *server, Connection *self)
{
    int64_t now = server->now_ms;
    if (self->shut) {
        self->dead |= now - self->shut_ms > SHUT_MS;
    } else if (!self->greeted) {
        self->dead |= now - self->opened_ms > server->handshake_ms;
    } else if (self->pinged_ms && now - self->pinged_ms > server->pong_ms) {
        self->dead = 1;
    } else if (self->left_ms) {
        if (now - self->left_ms > NOTICE_MS)
            session_leave(self);
        self->dead |= now - self->left_ms > server->grace_ms;
    } else if (now - self->opened_ms > self->age_ms) {
        session_leave(self);
        self->left_ms = now;
    } else if (!self->pinged_ms && now - self->received_ms > server->ping_ms) {
        self->pinged_ms = now;
        self->dead |= nghttp2_submit_ping(self->http2, NGHTTP2_FLAG_NONE, NULL) != 0;
        connection_touch(self);
    }
    int64_t idle_ms = now - (self->idle_ms ? self->idle_ms : self->opened_ms);
    if (!self->shut && !self->dead && !self->open_calls && idle_ms > server->idle_ms) {
        self->dead |= nghttp2_session_terminate_session(self->http2, NGHTTP2_NO_ERROR) != 0;
        connection_touch(self);
    }
    if (self->dead)
        connection_touch(self);
}

static PyObject *server_look(Server *server, PyObject *now_ms)
{
    if (take_now(server, now_ms) < 0)
        return NULL;
    listen_again(server, 1);
    resume(server);
    for (Connection *self = server->connections; self != NULL; self = self->next) {
        if (!self->dead)
            look_at(server, self);
    }
    return server_flush(server, NULL);
}

/* Take no more connections, and ask the clients of those there are to leave. */
static PyObject *server_leave(Server *server, PyObject *now_ms)
{
    if (take_now(server, now_ms) < 0)
        return NULL;
    listen_again(server, 0);
    server->listener = -1;
    for (Connection *self = server->connections; self != NULL; self = self->next) {
        if (!self->dead && !self->left_ms) {
            session_leave(self);
            self->left_ms = server->now_ms;
        }
    }
    return server_flush(server, NULL);
}

static PyObject *server_close(Server *server, PyObject *unused)
{
    (void)unused;
    listen_again(server, 0);
    server->listener = -1;
    for (Connection *self = server->connections; self != NULL; self = self->next) {
        self->dead = 1;
        connection_touch(self);
    }
    return server_flush(server, NULL);
}

static PyObject *server_fileno(Server *server, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(server->epoll);
}

static PyObject *server_count(Server *server, void *unused)
{
    (void)unused;
    return PyLong_FromLong(server->count);
}

static PyObject *server_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *keys[] = {"listener", "message_max", "calls_max", "count_max", "handshake_ms",
                           "held_max", "idle_ms", "age_ms", "grace_ms", "ping_ms", "pong_ms", NULL};
    int listener, calls_max, count_max;
    Py_ssize_t message_max, held_max;
    long long handshake_ms, idle_ms, age_ms, grace_ms, ping_ms, pong_ms;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "iniiLnLLLLL", keys, &listener, &message_max,
                                     &calls_max, &count_max, &handshake_ms, &held_max, &idle_ms, &age_ms,
                                     &grace_ms, &ping_ms, &pong_ms))
        return NULL;
    Server *server = (Server *)type->tp_alloc(type, 0);
    if (server == NULL)
        return NULL;
    server->listener = listener;
    server->message_max = message_max;
    server->calls_max = calls_max;
    server->count_max = count_max;
    server->handshake_ms = handshake_ms;
    server->held_max = (size_t)held_max;
    server->idle_ms = idle_ms;
    server->age_ms = age_ms;
    server->grace_ms = grace_ms;
    server->ping_ms = ping_ms;
    server->pong_ms = pong_ms;
    server->events = PyList_New(0);
    server->input = malloc(READ_SIZE);
    server->output = malloc(OUTPUT_MAX);
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (server->events == NULL || server->input == NULL || server->output == NULL ||
        server->epoll < 0) {
        Py_DECREF(server);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    listen_again(server, 1);
    return (PyObject *)server;
}

static void server_dealloc(Server *server)
{
    while (server->connections != NULL) {
        Connection *self = server->connections;
        server->connections = self->next;
        connection_close(self);
        self->server = NULL;
        Py_DECREF(self);
    }
    if (server->epoll > 0)
        close(server->epoll);
    free(server->input);
    free(server->output);
    Py_XDECREF(server->events);
    Py_TYPE(server)->tp_free((PyObject *)server);
}

static PyMethodDef server_methods[] = {
    {"poll", (PyCFunction)server_poll, METH_O, "Read what has come; returns events."},
    {"flush", (PyCFunction)server_flush, METH_NOARGS, "Write what waits; returns events."},
    {"look", (PyCFunction)server_look, METH_O, "Hold connections to their times."},
    {"leave", (PyCFunction)server_leave, METH_O, "Take no more, and ask clients to leave."},
    {"close", (PyCFunction)server_close, METH_NOARGS, "End all connections."},
    {"fileno", (PyCFunction)server_fileno, METH_NOARGS, "Is readable where there is work."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef server_attributes[] = {
    {"connections", (getter)server_count, NULL, "How many are open.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
PyTypeObject ServerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fermata_edge.Server",
    .tp_doc = "Connections of one listening socket, on one descriptor.",
    .tp_basicsize = sizeof(Server),
    .tp_dealloc = (destructor)server_dealloc,
    .tp_methods = server_methods,
    .tp_getset = server_attributes,
    .tp_new = server_new,
    .tp_flags = Py_TPFLAGS_DEFAULT,
};
