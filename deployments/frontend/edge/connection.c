/* A connection: what HTTP/2 makes of its bytes, and when it is looked at again. */
#include "edge.h"

#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

PyObject *events_take(PyObject *events)
{
    PyObject *found = PyList_GetSlice(events, 0, PyList_GET_SIZE(events));
    if (found != NULL && PyList_SetSlice(events, 0, PyList_GET_SIZE(events), NULL) < 0)
        Py_CLEAR(found);
    return found;
}

/* Have the connection looked at by the next flush. */
void connection_touch(Connection *self)
{
    if (self->server != NULL && !self->is_dirty) {
        self->is_dirty = 1;
        self->next_dirty = self->server->dirty;
        self->server->dirty = self;
    }
}

/* Count bytes that are held: beyond the limit, connections that hold some are not read. */
void connection_hold(Connection *self, size_t more, size_t less)
{
    self->held += more - less;
    if (self->server != NULL)
        self->server->held += more - less;
}

Connection *connection_open(PyObject *events, PyObject *peer, Py_ssize_t message_max,
                            uint32_t calls_max)
{
    Connection *self = PyObject_New(Connection, &ConnectionType);
    if (self == NULL)
        return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->fd = -1;
    self->events = Py_NewRef(events);
    self->peer = Py_NewRef(peer);
    self->message_max = message_max;
    if (session_open(self, calls_max) < 0) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    return self;
}

void connection_close(Connection *self)
{
    if (self->http2 != NULL) {
        session_end_calls(self);
        nghttp2_session_del(self->http2);
        self->http2 = NULL;
    }
    if (self->fd >= 0) {
        /* A process that is being forked may have the socket too, and keep it in the set. */
        if (self->server != NULL)
            epoll_ctl(self->server->epoll, EPOLL_CTL_DEL, self->fd, NULL);
        close(self->fd);
    }
    self->fd = -1;
    self->dead = 1;
}

static void connection_dealloc(Connection *self)
{
    connection_close(self);
    free(self->unsent);
    Py_XDECREF(self->events);
    Py_XDECREF(self->peer);
    PyObject_Free(self);
}

static PyObject *connection_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    (void)type, (void)names;
    PyObject *peer;
    Py_ssize_t message_max;
    int calls_max;
    if (!PyArg_ParseTuple(arguments, "Uni", &peer, &message_max, &calls_max))
        return NULL;
    PyObject *events = PyList_New(0);
    if (events == NULL)
        return NULL;
    Connection *self = connection_open(events, peer, message_max, (uint32_t)calls_max);
    Py_DECREF(events);
    return (PyObject *)self;
}

/* Whether nothing is to be read or written any more. */
int connection_is_over(Connection *self)
{
    return !nghttp2_session_want_read(self->http2) && !nghttp2_session_want_write(self->http2);
}

static PyObject *connection_receive(Connection *self, PyObject *given)
{
    Py_buffer data;
    if (PyObject_GetBuffer(given, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    if (!self->dead && session_receive(self, data.buf, (size_t)data.len) < 0)
        connection_close(self);
    PyBuffer_Release(&data);
    return events_take(self->events);
}

static PyObject *connection_output(Connection *self, PyObject *unused)
{
    (void)unused;
    char *buffer = malloc(OUTPUT_MAX);
    if (buffer == NULL)
        return PyErr_NoMemory();
    Py_ssize_t size = self->dead ? 0 : session_output(self, buffer, OUTPUT_MAX);
    if (size < 0 || (!self->dead && size == 0 && connection_is_over(self)))
        connection_close(self);
    PyObject *found = PyBytes_FromStringAndSize(buffer, size < 0 ? 0 : size);
    free(buffer);
    return found;
}

static PyObject *connection_events(Connection *self, PyObject *unused)
{
    (void)unused;
    return events_take(self->events);
}

static PyObject *connection_leave(Connection *self, PyObject *now_ms)
{
    long long now = PyLong_AsLongLong(now_ms);
    if (now == -1 && PyErr_Occurred())
        return NULL;
    if (!self->dead) {
        session_leave(self);
        self->left_ms = now;
    }
    Py_RETURN_NONE;
}

static PyObject *connection_dead(Connection *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(self->dead);
}

static PyMethodDef connection_methods[] = {
    {"receive", (PyCFunction)connection_receive, METH_O, "Take bytes; returns events."},
    {"output", (PyCFunction)connection_output, METH_NOARGS, "Bytes to be written now."},
    {"events", (PyCFunction)connection_events, METH_NOARGS, "Events that writing has caused."},
    {"leave", (PyCFunction)connection_leave, METH_O, "Ask the client to go elsewhere."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef connection_attributes[] = {
    {"dead", (getter)connection_dead, NULL, "Whether it has ended.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
PyTypeObject ConnectionType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fermata_edge.Connection",
    .tp_doc = "One connection without a socket.",
    .tp_basicsize = sizeof(Connection),
    .tp_dealloc = (destructor)connection_dealloc,
    .tp_methods = connection_methods,
    .tp_getset = connection_attributes,
    .tp_new = connection_new,
    .tp_flags = Py_TPFLAGS_DEFAULT,
};
