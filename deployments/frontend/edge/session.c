/* One connection's frames: nghttp2 reads and writes them, and calls come and go here. */
#include "edge.h"

#include <string.h>

static nghttp2_session_callbacks *callbacks;
static nghttp2_option *options;
static const uint8_t LEAVING[8] = "fermata";

/* Not in every nghttp2. */
extern void nghttp2_option_set_stream_reset_rate_limit(nghttp2_option *option, uint64_t burst,
                                                       uint64_t rate) __attribute__((weak));

static void link_call(Connection *self, Call *call)
{
    call->after = self->calls;
    if (self->calls != NULL)
        self->calls->before = call;
    self->calls = call;
    self->open_calls++;
}

/* The call is Python's alone from now on. */
static void unlink_call(Connection *self, Call *call)
{
    if (call->before != NULL)
        call->before->after = call->after;
    else
        self->calls = call->after;
    if (call->after != NULL)
        call->after->before = call->before;
    self->open_calls--;
    connection_hold(self, 0, call->held);
    self->promised -= call->promised;
    /* Python may keep the call, but not what nobody will read. */
    Py_CLEAR(call->message);
    Py_CLEAR(call->pieces);
    self->idle_ms = self->received_ms;
    call->connection = NULL;
    Py_DECREF(call);
}

static int close_call(Call *call, uint32_t code)
{
    int failed = call_event(call, CLOSED, PyLong_FromUnsignedLong(code));
    unlink_call(call->connection, call);
    return failed;
}

void session_end_calls(Connection *self)
{
    while (self->calls != NULL)
        close_call(self->calls, NGHTTP2_CANCEL);
}

static int on_begin_headers(nghttp2_session *http2, const nghttp2_frame *frame, void *user)
{
    Connection *self = user;
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    Call *call = PyObject_New(Call, &CallType);
    if (call == NULL) {
        PyErr_Clear();
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    memset((char *)call + sizeof(PyObject), 0, sizeof *call - sizeof(PyObject));
    call->connection = self;
    call->id = frame->hd.stream_id;
    call->peer = Py_NewRef(self->peer);
    link_call(self, call);
    self->begun++;
    call->headers = PyList_New(0);
    if (call->headers == NULL) {
        PyErr_Clear();
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    nghttp2_session_set_stream_user_data(http2, call->id, call);
    return 0;
}

static int is_name(const uint8_t *name, size_t size, const char *wanted)
{
    return size == strlen(wanted) && memcmp(name, wanted, size) == 0;
}

static int keep_text(PyObject **place, const uint8_t *value, size_t size)
{
    PyObject *text = PyUnicode_DecodeLatin1((const char *)value, (Py_ssize_t)size, NULL);
    if (text == NULL)
        return -1;
    Py_XSETREF(*place, text);
    return 0;
}

/* Text where it is ASCII, and bytes otherwise. */
static PyObject *header_value(const uint8_t *value, size_t size)
{
    PyObject *text = PyUnicode_DecodeASCII((const char *)value, (Py_ssize_t)size, NULL);
    if (text != NULL || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        return text;
    PyErr_Clear();
    return PyBytes_FromStringAndSize((const char *)value, (Py_ssize_t)size);
}

static int keep_header(Call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                       size_t size)
{
    PyObject *key = PyUnicode_DecodeLatin1((const char *)name, (Py_ssize_t)name_size, NULL);
    PyObject *kept = key == NULL ? NULL : header_value(value, size);
    PyObject *pair = kept == NULL ? NULL : PyTuple_Pack(2, key, kept);
    Py_XDECREF(key);
    Py_XDECREF(kept);
    int failed = pair == NULL ? -1 : PyList_Append(call->headers, pair);
    Py_XDECREF(pair);
    return failed;
}

static int take_header(Call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                       size_t size)
{
    if (is_name(name, name_size, ":path"))
        return keep_text(&call->path, value, size);
    if (is_name(name, name_size, "grpc-timeout"))
        return keep_text(&call->timeout, value, size);
    if (is_name(name, name_size, "grpc-encoding"))
        return keep_text(&call->encoding, value, size);
    if (is_name(name, name_size, ":method"))
        call->is_post = is_name(value, size, "POST");
    else if (is_name(name, name_size, "content-type"))
        call->is_grpc = size >= 16 && memcmp(value, "application/grpc", 16) == 0;
    else if (name_size && name[0] != ':' && !is_name(name, name_size, "te"))
        return keep_header(call, name, name_size, value, size);
    return 0;
}

static int on_header(nghttp2_session *http2, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_size, const uint8_t *value, size_t size, uint8_t flags,
                     void *user)
{
    (void)flags, (void)user;
    /* Trailers of a client mean nothing here. */
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    Call *call = nghttp2_session_get_stream_user_data(http2, frame->hd.stream_id);
    if (call == NULL || call->too_many_headers)
        return 0;
    call->header_size += name_size + size + 32;
    if (call->header_size > HEADERS_MAX) {
        call->too_many_headers = 1;
        return 0;
    }
    if (take_header(call, name, name_size, value, size) < 0) {
        PyErr_Clear();
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    return 0;
}

static int on_frame(nghttp2_session *http2, const nghttp2_frame *frame, void *user)
{
    Connection *self = user;
    if (frame->hd.type == NGHTTP2_SETTINGS)
        self->greeted = 1;
    if (frame->hd.type == NGHTTP2_PING && frame->hd.flags & NGHTTP2_FLAG_ACK) {
        self->pinged_ms = 0;
        if (self->left_ms && !memcmp(frame->ping.opaque_data, LEAVING, sizeof LEAVING))
            session_leave(self);
    }
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
        return 0;
    Call *call = nghttp2_session_get_stream_user_data(http2, frame->hd.stream_id);
    if (call == NULL || call->connection == NULL)
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        call->announced = 1;
        if (call_event(call, BEGUN, NULL) < 0)
            return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    if (frame->hd.flags & NGHTTP2_FLAG_END_STREAM && call_end(call) < 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return 0;
}

static int on_data(nghttp2_session *http2, uint8_t flags, int32_t id, const uint8_t *data,
                   size_t size, void *user)
{
    (void)flags, (void)user;
    Call *call = nghttp2_session_get_stream_user_data(http2, id);
    /* No call holds up the others of its connection. */
    if (nghttp2_session_consume_connection(http2, size))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (call != NULL && call->connection != NULL && call_message_bytes(call, data, size) < 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return 0;
}

static int on_sent(nghttp2_session *http2, const nghttp2_frame *frame, void *user)
{
    (void)user;
    if (frame->hd.type != NGHTTP2_HEADERS || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        return 0;
    Call *call = nghttp2_session_get_stream_user_data(http2, frame->hd.stream_id);
    /* Its client need not send the rest. */
    if (call != NULL && call->connection != NULL && !call->ended &&
        nghttp2_submit_rst_stream(http2, NGHTTP2_FLAG_NONE, call->id, NGHTTP2_NO_ERROR))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return 0;
}

static int on_stream_close(nghttp2_session *http2, int32_t id, uint32_t code, void *user)
{
    (void)user;
    Call *call = nghttp2_session_get_stream_user_data(http2, id);
    if (call == NULL || call->connection == NULL)
        return 0;
    nghttp2_session_set_stream_user_data(http2, id, NULL);
    return close_call(call, code) ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

int session_ready(void)
{
    if (callbacks != NULL)
        return 0;
    if (nghttp2_session_callbacks_new(&callbacks) || nghttp2_option_new(&options))
        return -1;
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_option_set_no_auto_window_update(options, 1);
    nghttp2_option_set_no_closed_streams(options, 1);
    nghttp2_option_set_max_outbound_ack(options, QUEUE_MAX);
    if (nghttp2_option_set_stream_reset_rate_limit != NULL)
        nghttp2_option_set_stream_reset_rate_limit(options, RESETS_BURST, RESETS_BURST);
    return 0;
}

int session_open(Connection *self, uint32_t calls_max)
{
    if (nghttp2_session_server_new2(&self->http2, callbacks, self, options))
        return -1;
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, calls_max},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, FRAME_MAX},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HEADERS_MAX},
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
    };
    if (nghttp2_submit_settings(self->http2, NGHTTP2_FLAG_NONE, settings,
                                sizeof settings / sizeof *settings) ||
        nghttp2_session_set_local_window_size(self->http2, NGHTTP2_FLAG_NONE, 0, 8 * WINDOW))
        return -1;
    return 0;
}

int session_receive(Connection *self, const uint8_t *data, size_t size)
{
    ssize_t taken = nghttp2_session_mem_recv(self->http2, data, size);
    return taken < 0 || (size_t)taken != size ? -1 : 0;
}

/* What is to be written now, up to about `room`; -1 on an error. */
Py_ssize_t session_output(Connection *self, char *buffer, size_t room)
{
    size_t size = 0;
    /* nghttp2 gives one frame at a time, of up to 16 KB of data. */
    while (size + (17 << 10) <= room) {
        const uint8_t *data;
        ssize_t given = nghttp2_session_mem_send(self->http2, &data);
        if (given < 0)
            return -1;
        if (given == 0)
            break;
        if ((size_t)given > room - size)
            return -1;
        memcpy(buffer + size, data, (size_t)given);
        size += (size_t)given;
    }
    return (Py_ssize_t)size;
}

/* Ask the client to go elsewhere: first without a limit, then by the last call that is served. */
void session_leave(Connection *self)
{
    int failed;
    if (!self->left_ms) {
        failed = nghttp2_submit_shutdown_notice(self->http2) ||
                 nghttp2_submit_ping(self->http2, NGHTTP2_FLAG_NONE, LEAVING);
    } else {
        if (self->told)
            return;
        self->told = 1;
        int32_t last = nghttp2_session_get_last_proc_stream_id(self->http2);
        failed = nghttp2_submit_goaway(self->http2, NGHTTP2_FLAG_NONE, last, NGHTTP2_NO_ERROR,
                                       NULL, 0);
    }
    if (failed)
        self->dead = 1;
    connection_touch(self);
}
