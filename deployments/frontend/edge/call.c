/* One call: what came of its messages, and what is to be sent. */
#include "edge.h"

/* Tell Python; takes over `data`, which may be NULL for None. */
int call_event(Call *call, int kind, PyObject *data)
{
    PyObject *number = PyLong_FromLong(kind);
    PyObject *event = number == NULL ? NULL : PyTuple_New(3);
    if (event == NULL) {
        Py_XDECREF(number);
        Py_XDECREF(data);
        PyErr_Clear();
        return -1;
    }
    PyTuple_SET_ITEM(event, 0, number);
    PyTuple_SET_ITEM(event, 1, Py_NewRef((PyObject *)call));
    PyTuple_SET_ITEM(event, 2, data == NULL ? Py_NewRef(Py_None) : data);
    int failed = PyList_Append(call->connection->events, event);
    Py_DECREF(event);
    if (failed)
        PyErr_Clear();
    return failed;
}

/* Begin a message whose prefix has come. */
static int begin_message(Call *call)
{
    const uint8_t *head = call->prefix;
    call->need = (size_t)head[1] << 24 | (size_t)head[2] << 16 | (size_t)head[3] << 8 | head[4];
    call->have = 0;
    if (call->need > (size_t)call->connection->message_max || head[0] > 1) {
        call->ignored = 1;
        return call_event(call, TOO_LARGE, PyLong_FromSize_t(head[0] > 1 ? 0 : call->need));
    }
    /* A length alone must not cost memory: beyond one large message of a connection, what comes is
     * kept in pieces, and put together at the end. */
    Connection *connection = call->connection;
    size_t given = call->need;
    call->in_pieces = call->promised = 0;
    if (given > PIECE) {
        if (connection->promised + given <= (size_t)connection->message_max)
            connection->promised += call->promised = given;
        else
            given = PIECE;
    }
    call->message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)given);
    if (call->message == NULL) {
        PyErr_Clear();
        return -1;
    }
    return 0;
}

/* Go on with a message in a further piece. */
static int next_piece(Call *call)
{
    size_t left = call->need - call->have, size = left < PIECE ? left : PIECE;
    PyObject *piece = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (call->pieces == NULL)
        call->pieces = PyList_New(0);
    if (piece == NULL || call->pieces == NULL || PyList_Append(call->pieces, call->message) < 0) {
        Py_XDECREF(piece);
        PyErr_Clear();
        return -1;
    }
    Py_SETREF(call->message, piece);
    call->in_pieces = call->have;
    return 0;
}

static PyObject *joined(Call *call)
{
    PyObject *whole = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)call->need);
    if (whole == NULL) {
        PyErr_Clear();
        return NULL;
    }
    char *at = PyBytes_AS_STRING(whole);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(call->pieces); i++) {
        PyObject *piece = PyList_GET_ITEM(call->pieces, i);
        memcpy(at, PyBytes_AS_STRING(piece), (size_t)PyBytes_GET_SIZE(piece));
        at += PyBytes_GET_SIZE(piece);
    }
    memcpy(at, PyBytes_AS_STRING(call->message), (size_t)PyBytes_GET_SIZE(call->message));
    return whole;
}

static int tell_message(Call *call)
{
    PyObject *message = call->message;
    if (call->pieces != NULL) {
        message = joined(call);
        if (message == NULL)
            return -1;
        Py_CLEAR(call->pieces);
        Py_DECREF(call->message);
    }
    call->message = NULL;
    call->connection->promised -= call->promised;
    call->promised = 0;
    call->unread++;
    int kind = call->prefix[0] ? COMPRESSED : MESSAGE;
    call->prefix_size = 0;
    return call_event(call, kind, message);
}

/* Take bytes of messages while Python keeps up; returns how many, or -1. */
static Py_ssize_t take_bytes(Call *call, const uint8_t *data, size_t size)
{
    const uint8_t *at = data, *end = data + size;
    while (at < end && !call->ignored && (call->message != NULL || call->unread < UNREAD_MAX)) {
        if (call->message == NULL) {
            while (at < end && call->prefix_size < PREFIX)
                call->prefix[call->prefix_size++] = *at++;
            if (call->prefix_size < PREFIX)
                break;
            if (begin_message(call) < 0)
                return -1;
            if (call->ignored)
                break;
        }
        size_t place = call->have - call->in_pieces;
        size_t room = (size_t)PyBytes_GET_SIZE(call->message) - place;
        size_t part = (size_t)(end - at) < room ? (size_t)(end - at) : room;
        memcpy(PyBytes_AS_STRING(call->message) + place, at, part);
        call->have += part;
        at += part;
        if (call->have == call->need) {
            if (tell_message(call) < 0)
                return -1;
        } else if (part == room && next_piece(call) < 0) {
            return -1;
        }
    }
    return call->ignored ? (Py_ssize_t)size : at - data;
}

static int keep_backlog(Call *call, const uint8_t *data, size_t size)
{
    if (call->backlog_size + size > call->backlog_capacity) {
        size_t capacity = 2 * call->backlog_capacity + size;
        char *grown = realloc(call->backlog, capacity);
        if (grown == NULL)
            return -1;
        call->backlog = grown;
        call->backlog_capacity = capacity;
    }
    memcpy(call->backlog + call->backlog_size, data, size);
    call->backlog_size += size;
    return 0;
}

static void drop_backlog(Call *call)
{
    free(call->backlog);
    call->backlog = NULL;
    call->backlog_size = call->backlog_capacity = 0;
}

/* Let the client send as much more; while Python does not read, its flow control holds it back. */
static int grant(Call *call)
{
    if (call->ungranted == 0 || call->unread >= UNREAD_MAX)
        return 0;
    size_t size = call->ungranted;
    call->ungranted = 0;
    return nghttp2_session_consume_stream(call->connection->http2, call->id, size) ? -1 : 0;
}

int call_message_bytes(Call *call, const uint8_t *data, size_t size)
{
    call->ungranted += size;
    if (!call->ignored) {
        call->held += size;
        connection_hold(call->connection, size, 0);
    }
    Py_ssize_t taken = call->backlog_size ? 0 : take_bytes(call, data, size);
    if (taken < 0)
        return -1;
    if ((size_t)taken < size && keep_backlog(call, data + taken, size - (size_t)taken) < 0)
        return -1;
    return grant(call);
}

/* The client sends no more; Python hears of it behind the last message. */
int call_end(Call *call)
{
    call->ended = 1;
    if (call->end_told || call->backlog_size)
        return 0;
    call->end_told = 1;
    if (!call->ignored && (call->message != NULL || call->prefix_size))
        /* A part of a message is no message. */
        return nghttp2_submit_rst_stream(call->connection->http2, NGHTTP2_FLAG_NONE, call->id,
                                         NGHTTP2_PROTOCOL_ERROR) ? -1 : 0;
    return call_event(call, ENDED, NULL);
}

/* Go on with what came behind the messages that Python has read by now. */
static int resume_messages(Call *call)
{
    if (call->backlog_size) {
        Py_ssize_t taken = take_bytes(call, (uint8_t *)call->backlog, call->backlog_size);
        if (taken < 0)
            return -1;
        call->backlog_size -= (size_t)taken;
        if (call->backlog_size == 0)
            drop_backlog(call);
        else
            memmove(call->backlog, call->backlog + taken, call->backlog_size);
        if (call->ended && call_end(call) < 0)
            return -1;
    }
    return grant(call);
}

/* What waits for the client. */
static size_t waits(const Call *call)
{
    return call->pending + ANSWER_COST * (call->out_last - call->out_first);
}

/* Fill a DATA frame with what is to be sent. */
ssize_t call_output(Call *call, uint8_t *buffer, size_t room, uint32_t *flags)
{
    size_t size = 0;
    while (size < room && call->out_first < call->out_last) {
        PyObject *message = call->out[call->out_first];
        size_t length = (size_t)PyBytes_GET_SIZE(message), at = call->out_at;
        if (at < PREFIX) {
            const uint8_t head[PREFIX] = {0, (uint8_t)(length >> 24), (uint8_t)(length >> 16),
                                          (uint8_t)(length >> 8), (uint8_t)length};
            buffer[size++] = head[at];
            call->out_at++;
        } else {
            size_t part = length + PREFIX - at;
            if (part > room - size)
                part = room - size;
            memcpy(buffer + size, PyBytes_AS_STRING(message) + at - PREFIX, part);
            size += part;
            call->out_at += part;
        }
        if (call->out_at == length + PREFIX) {
            call->out_first++;
            call->out_at = 0;
            Py_DECREF(message);
        }
    }
    call->pending -= size;
    if (call->waiting && waits(call) < PENDING_LOW) {
        call->waiting = 0;
        if (call_event(call, DRAINED, NULL) < 0)
            return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    if (call->out_first == call->out_last && call->finishing) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        return (ssize_t)size;
    }
    if (size == 0) {
        call->deferred = 1;
        return NGHTTP2_ERR_DEFERRED;
    }
    return (ssize_t)size;
}

static int keep_output(Call *call, PyObject *message)
{
    if (call->out_first == call->out_last)
        call->out_first = call->out_last = 0;
    if (call->out_last == call->out_capacity) {
        size_t capacity = call->out_capacity ? 2 * call->out_capacity : 4;
        PyObject **grown = realloc(call->out, capacity * sizeof *grown);
        if (grown == NULL)
            return -1;
        call->out = grown;
        call->out_capacity = capacity;
    }
    call->out[call->out_last++] = Py_NewRef(message);
    call->pending += (size_t)PyBytes_GET_SIZE(message) + PREFIX;
    return 0;
}

#define FIELD(name, value)                                                                         \
    {(uint8_t *)(name), (uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1,                   \
     NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE}
static const nghttp2_nv RESPONSE[] = {FIELD(":status", "200"),
                                      FIELD("content-type", "application/grpc")};
enum { TRAILERS_MAX = 64 };

static ssize_t read_output(nghttp2_session *http2, int32_t id, uint8_t *buffer, size_t room,
                                 uint32_t *flags, nghttp2_data_source *source, void *user)
{
    (void)user;
    Call *call = source->ptr;
    ssize_t size = call_output(call, buffer, room, flags);
    if (!(*flags & NGHTTP2_DATA_FLAG_EOF))
        return size;
    nghttp2_nv fields[TRAILERS_MAX];
    Py_ssize_t count = PyTuple_GET_SIZE(call->trailers);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyTuple_GET_ITEM(call->trailers, i);
        PyObject *name = PyTuple_GET_ITEM(pair, 0), *value = PyTuple_GET_ITEM(pair, 1);
        fields[i] = (nghttp2_nv){(uint8_t *)PyBytes_AS_STRING(name),
                                 (uint8_t *)PyBytes_AS_STRING(value),
                                 (size_t)PyBytes_GET_SIZE(name), (size_t)PyBytes_GET_SIZE(value), 0};
    }
    if (nghttp2_submit_trailer(http2, id, fields, (size_t)count))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return size;
}

/* Have what waits in the call sent. */
static int begin_output(Call *call)
{
    nghttp2_session *http2 = call->connection->http2;
    connection_touch(call->connection);
    if (!call->responded) {
        call->responded = 1;
        nghttp2_data_provider provider = {{.ptr = call}, read_output};
        return nghttp2_submit_response(http2, call->id, RESPONSE, 2, &provider) ? -1 : 0;
    }
    if (call->deferred) {
        call->deferred = 0;
        return nghttp2_session_resume_data(http2, call->id) ? -1 : 0;
    }
    return 0;
}

static PyObject *broken(Call *call)
{
    if (call->connection != NULL) {
        call->connection->dead = 1;
        connection_touch(call->connection);
    }
    Py_RETURN_NONE;
}

static PyObject *call_send(Call *call, PyObject *message)
{
    if (!PyBytes_CheckExact(message)) {
        PyErr_SetString(PyExc_TypeError, "a message is of bytes");
        return NULL;
    }
    if (call->connection == NULL || call->finishing || call->connection->dead)
        return PyLong_FromLong(0);
    if (keep_output(call, message) < 0 || begin_output(call) < 0)
        return broken(call);
    return PyLong_FromSize_t(waits(call));
}

static PyObject *call_wait(Call *call, PyObject *unused)
{
    (void)unused;
    call->waiting = call->connection != NULL;
    return PyBool_FromLong(call->waiting);
}

static int are_trailers(PyObject *given)
{
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) > TRAILERS_MAX)
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
        PyObject *pair = PyTuple_GET_ITEM(given, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 ||
            !PyBytes_Check(PyTuple_GET_ITEM(pair, 0)) || !PyBytes_Check(PyTuple_GET_ITEM(pair, 1)))
            return 0;
    }
    return 1;
}

static PyObject *call_finish(Call *call, PyObject *trailers)
{
    if (!are_trailers(trailers)) {
        PyErr_SetString(PyExc_TypeError, "trailers are a short tuple of pairs of bytes");
        return NULL;
    }
    if (call->connection == NULL || call->finishing || call->connection->dead)
        Py_RETURN_NONE;
    call->finishing = 1;
    call->trailers = Py_NewRef(trailers);
    if (begin_output(call) < 0)
        return broken(call);
    Py_RETURN_NONE;
}

static PyObject *call_reset(Call *call, PyObject *code)
{
    long number = PyLong_AsLong(code);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (call->connection == NULL || call->connection->dead)
        Py_RETURN_NONE;
    connection_touch(call->connection);
    if (nghttp2_submit_rst_stream(call->connection->http2, NGHTTP2_FLAG_NONE, call->id,
                                  (uint32_t)number))
        return broken(call);
    Py_RETURN_NONE;
}

static PyObject *call_refuse(Call *call, PyObject *status)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(status, &size);
    if (text == NULL)
        return NULL;
    if (call->connection == NULL || call->responded || call->connection->dead)
        Py_RETURN_NONE;
    call->responded = call->finishing = 1;
    connection_touch(call->connection);
    nghttp2_nv field = {(uint8_t *)":status", (uint8_t *)text, 7, (size_t)size, 0};
    if (nghttp2_submit_response(call->connection->http2, call->id, &field, 1, NULL))
        return broken(call);
    Py_RETURN_NONE;
}

static PyObject *call_read(Call *call, PyObject *given)
{
    size_t size = PyLong_AsSize_t(given);
    if (size == (size_t)-1 && PyErr_Occurred())
        return NULL;
    if (call->unread)
        call->unread--;
    if (call->connection == NULL || call->connection->dead)
        Py_RETURN_NONE;
    size = size + PREFIX < call->held ? size + PREFIX : call->held;
    call->held -= size;
    connection_hold(call->connection, 0, size);
    if (call->ungranted || call->backlog_size) {
        connection_touch(call->connection);
        if (resume_messages(call) < 0)
            return broken(call);
    }
    Py_RETURN_NONE;
}

static void call_dealloc(Call *call)
{
    Py_XDECREF(call->path);
    Py_XDECREF(call->headers);
    Py_XDECREF(call->timeout);
    Py_XDECREF(call->encoding);
    Py_XDECREF(call->peer);
    Py_XDECREF(call->context);
    Py_XDECREF(call->message);
    Py_XDECREF(call->pieces);
    Py_XDECREF(call->trailers);
    while (call->out_first < call->out_last)
        Py_DECREF(call->out[call->out_first++]);
    free(call->out);
    free(call->backlog);
    PyObject_Free(call);
}

static PyObject *value_or_none(PyObject *value)
{
    return Py_NewRef(value == NULL ? Py_None : value);
}
static PyObject *get_path(Call *call, void *unused) { (void)unused; return value_or_none(call->path); }
static PyObject *get_headers(Call *call, void *unused) { (void)unused; return value_or_none(call->headers); }
static PyObject *get_timeout(Call *call, void *unused) { (void)unused; return value_or_none(call->timeout); }
static PyObject *get_encoding(Call *call, void *unused) { (void)unused; return value_or_none(call->encoding); }
static PyObject *get_peer(Call *call, void *unused) { (void)unused; return value_or_none(call->peer); }
static PyObject *get_context(Call *call, void *unused) { (void)unused; return value_or_none(call->context); }
static int set_context(Call *call, PyObject *value, void *unused)
{
    (void)unused;
    Py_XSETREF(call->context, Py_XNewRef(value));
    return 0;
}
static PyObject *get_closed(Call *call, void *unused) { (void)unused; return PyBool_FromLong(call->connection == NULL); }
static PyObject *get_valid(Call *call, void *unused) { (void)unused; return PyBool_FromLong(call->is_post && call->is_grpc); }
static PyObject *get_overflow(Call *call, void *unused) { (void)unused; return PyBool_FromLong(call->too_many_headers); }

static PyGetSetDef call_attributes[] = {
    {"path", (getter)get_path, NULL, "Service and method.", NULL},
    {"headers", (getter)get_headers, NULL, "Pairs of the other headers.", NULL},
    {"timeout", (getter)get_timeout, NULL, "The header grpc-timeout, or None.", NULL},
    {"encoding", (getter)get_encoding, NULL, "The header grpc-encoding, or None.", NULL},
    {"peer", (getter)get_peer, NULL, "Address and port, as gRPC writes them.", NULL},
    {"closed", (getter)get_closed, NULL, "Whether the stream has ended.", NULL},
    {"valid", (getter)get_valid, NULL, "Whether it is gRPC at all.", NULL},
    {"overflow", (getter)get_overflow, NULL, "Whether there were too many headers.", NULL},
    {"context", (getter)get_context, (setter)set_context, "What Python keeps of it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef call_methods[] = {
    {"send", (PyCFunction)call_send, METH_O, "Send a message; returns the bytes that wait."},
    {"wait", (PyCFunction)call_wait, METH_NOARGS, "Ask for DRAINED once little waits."},
    {"read", (PyCFunction)call_read, METH_O, "A message of so many bytes has been read."},
    {"finish", (PyCFunction)call_finish, METH_O, "End with trailers, behind all messages."},
    {"reset", (PyCFunction)call_reset, METH_O, "End at once, with a code of HTTP/2."},
    {"refuse", (PyCFunction)call_refuse, METH_O, "End with a status of HTTP alone."},
    {NULL, NULL, 0, NULL},
};
PyTypeObject CallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fermata_edge.Call",
    .tp_basicsize = sizeof(Call),
    .tp_dealloc = (destructor)call_dealloc,
    .tp_methods = call_methods,
    .tp_getset = call_attributes,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
};
