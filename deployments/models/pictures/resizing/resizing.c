/* Scaling of pictures as Pillow does it, to the last bit: antialiased, across and then down, with
   eight bits between the two passes and weights of 22 bits (Pillow's src/libImaging/Resample.c). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CHANNELS 3
/* A pixel is a word between the passes, its last byte unused. So many go through at once: more than
   a register holds are slower than one by one. */
#ifdef __x86_64__
#define LANES 8
#define TARGET __attribute__((target("avx2")))
#else
#define LANES 4
#define TARGET
#endif
#define SIDE_MAX 65535
#define PRECISION_BITS (32 - 8 - 2)

typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef int32_t Numbers __attribute__((vector_size(LANES * 4)));
/* Four pixels of a row, or four rows' of a column. */
#define FOUR 4
typedef uint8_t FourBytes __attribute__((vector_size(FOUR * 4)));
typedef uint32_t FourWords __attribute__((vector_size(FOUR * 4)));
#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (FourWords){__VA_ARGS__})
#endif

typedef struct {
    int first, count;
    const int32_t *weights;
} Taps;

/* Which pixels of a side each scaled one is made of. */
typedef struct {
    int length, scaled;
    Taps *taps;
    int32_t *weights;
    /* The pixels that are read at all. */
    int begin, end;
} Axis;

typedef struct {
    const char *data;
    Py_ssize_t row;
    int height, width;
} Source;

typedef struct {
    char *data;
    Py_ssize_t row, column, channel;
} Target;

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

static void free_axis(Axis *axis)
{
    free(axis->taps);
    free(axis->weights);
}

/* Weights of a side of which the part from `begin` to `end` is scaled; -1 without memory. */
static int plan_axis(Axis *axis, float begin, float end, int cubic)
{
    double scale = (double)(end - begin) / axis->scaled;
    double filter_scale = scale < 1.0 ? 1.0 : scale;
    double support = (cubic ? 2.0 : 1.0) * filter_scale, tighter = 1.0 / filter_scale;
    /* No more pixels than there are, however wide the filter. */
    int most = (int)ceil(support) * 2 + 1;
    most = most < axis->length ? most : axis->length;
    double *exact = malloc(sizeof *exact * most);
    axis->taps = malloc(sizeof *axis->taps * axis->scaled);
    axis->weights = malloc(sizeof *axis->weights * axis->scaled * most);
    if (exact == NULL || axis->taps == NULL || axis->weights == NULL) {
        free(exact);
        return -1;
    }
    axis->begin = axis->length;
    axis->end = 0;
    for (int i = 0; i < axis->scaled; i++) {
        double centre = begin + (i + 0.5) * scale, sum = 0.0;
        int first = (int)(centre - support + 0.5), last = (int)(centre + support + 0.5);
        first = first < 0 ? 0 : first > axis->length - 1 ? axis->length - 1 : first;
        last = last > axis->length ? axis->length : last <= first ? first + 1 : last;
        int count = last - first < most ? last - first : most;
        int32_t *weights = axis->weights + (size_t)i * most;
        for (int j = 0; j < count; j++) {
            double distance = (j + first - centre + 0.5) * tighter;
            exact[j] = cubic ? bicubic(distance) : bilinear(distance);
            sum += exact[j];
        }
        for (int j = 0; j < count; j++) {
            double weight = (sum != 0.0 ? exact[j] / sum : exact[j]) * (1 << PRECISION_BITS);
            weights[j] = (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
        }
        axis->taps[i] = (Taps){first, count, weights};
        axis->begin = first < axis->begin ? first : axis->begin;
        axis->end = first + count > axis->end ? first + count : axis->end;
    }
    free(exact);
    return 0;
}

#define INLINE static inline __attribute__((always_inline))

/* Sums of bytes times weights, as bytes again. */
INLINE void narrow(Words *sums)
{
    Numbers found = (Numbers)*sums >> PRECISION_BITS;
    found &= ~(found >> 31);
    found |= found > 255;
    *sums = (Words)found & 255;
}

/* The weighted mean of blocks of pixels that lie `step` words apart. */
INLINE void blend(const uint32_t *from, size_t step, const Taps *taps, uint32_t *to)
{
    Words red = (Words){} + (1 << (PRECISION_BITS - 1)), green = red, blue = red;
    for (int i = 0; i < taps->count; i++, from += step) {
        Words pixels;
        uint32_t weight = (uint32_t)taps->weights[i];
        memcpy(&pixels, from, sizeof pixels);
        red += (pixels & 255) * weight;
        green += (pixels >> 8 & 255) * weight;
        blue += (pixels >> 16 & 255) * weight;
    }
    narrow(&red);
    narrow(&green);
    narrow(&blue);
    red |= green << 8 | blue << 16;
    memcpy(to, &red, sizeof red);
}

/* Pixels `begin` to `end` of a row, as words. */
INLINE void widen(const uint8_t *row, int begin, int end, uint32_t *to)
{
    row += (size_t)begin * CHANNELS;
    for (int i = begin; i < end; i++, row += CHANNELS)
        *to++ = row[0] | (uint32_t)row[1] << 8 | (uint32_t)row[2] << 16;
}

/* Four pixels of a row, of which 16 bytes are read. */
INLINE void widen_four(const uint8_t *row, FourWords *to)
{
    FourBytes bytes;
    memcpy(&bytes, row, sizeof bytes);
#ifdef __clang__
    bytes = __builtin_shufflevector(
        bytes, bytes, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
#else
    bytes = __builtin_shuffle(
        bytes, (FourBytes){0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11});
#endif
    memcpy(to, &bytes, sizeof bytes);
}

/* Pixels `begin` to `end` of four rows, as words: those of a column side by side, and columns as
   far apart as blocks are. */
INLINE void turn_four(const uint8_t *const rows[FOUR], int begin, int end, uint32_t *to)
{
    int at = begin;
    /* Four pixels take 12 bytes, so two more must follow them. */
    for (; end - at >= FOUR + 2; at += FOUR, to += FOUR * LANES) {
        FourWords row[FOUR];
        for (int i = 0; i < FOUR; i++)
            widen_four(rows[i] + (size_t)at * CHANNELS, row + i);
        FourWords low = PICK(row[0], row[1], 0, 4, 1, 5), high = PICK(row[0], row[1], 2, 6, 3, 7);
        FourWords low2 = PICK(row[2], row[3], 0, 4, 1, 5), high2 = PICK(row[2], row[3], 2, 6, 3, 7);
        row[0] = PICK(low, low2, 0, 1, 4, 5);
        row[1] = PICK(low, low2, 2, 3, 6, 7);
        row[2] = PICK(high, high2, 0, 1, 4, 5);
        row[3] = PICK(high, high2, 2, 3, 6, 7);
        for (int i = 0; i < FOUR; i++)
            memcpy(to + i * LANES, row + i, sizeof *row);
    }
    for (; at < end; at++, to += LANES)
        for (int i = 0; i < FOUR; i++)
            widen(rows[i], at, at + 1, to + i);
}

/* Words to fill whole blocks with so many pixels. */
INLINE size_t whole(int width)
{
    return ((size_t)width + LANES - 1) / LANES * LANES;
}

/* Scale some rows whose pixels lie in columns of LANES to the width of the result. */
INLINE void go_across(const uint32_t *columns, const Axis *across, uint32_t *to, int count)
{
    size_t row = whole(across->scaled);
    for (int i = 0; i < across->scaled; i++) {
        const Taps *taps = across->taps + i;
        uint32_t made[LANES];
        blend(columns + (size_t)(taps->first - across->begin) * LANES, LANES, taps, made);
        for (int j = 0; j < count; j++)
            to[j * row + i] = made[j];
    }
}

/* Make one row of many. */
INLINE void go_down(const uint32_t *rows, int width, const Axis *down, int at, uint32_t *to)
{
    const Taps *taps = down->taps + at;
    const uint32_t *first = rows + whole(width) * (taps->first - down->begin);
    for (size_t i = 0; i < whole(width); i += LANES)
        blend(first + i, whole(width), taps, to + i);
}

/* Write a row of the result in the caller's layout. */
INLINE void put(const uint32_t *row, int width, char *to, const Target *target)
{
    for (int channel = 0; channel < CHANNELS; channel++, to += target->channel)
        if (target->column == 1)
            for (int i = 0; i < width; i++)
                to[i] = (char)(row[i] >> 8 * channel);
        else
            for (int i = 0; i < width; i++)
                to[i * target->column] = (char)(row[i] >> 8 * channel);
}

typedef struct {
    Source source;
    Target target;
    Axis across, down;
    uint32_t *columns, *between, *rows;
} Work;

INLINE const uint8_t *source_row(const Work *work, int row)
{
    return (const uint8_t *)work->source.data + work->source.row * row;
}

/* Rows go across in blocks, and then down one by one. */
INLINE void across_first(const Work *work)
{
    const Axis *across = &work->across, *down = &work->down;
    for (int at = down->begin; at < down->end; at += LANES) {
        int count = down->end - at < LANES ? down->end - at : LANES;
        for (int i = 0; i < LANES; i += FOUR) {
            const uint8_t *rows[FOUR];
            /* The last row again, where there are no more. */
            for (int j = 0; j < FOUR; j++)
                rows[j] = source_row(work, at + (i + j < count ? i + j : count - 1));
            turn_four(rows, across->begin, across->end, work->columns + i);
        }
        go_across(work->columns, across,
                  work->between + (at - down->begin) * whole(across->scaled), count);
    }
    for (int i = 0; i < down->scaled; i++) {
        go_down(work->between, across->scaled, down, i, work->rows);
        put(work->rows, across->scaled, work->target.data + i * work->target.row, &work->target);
    }
}

/* Blocks of rows that have gone down go across. */
INLINE void down_first(const Work *work)
{
    const Axis *across = &work->across, *down = &work->down;
    int width = across->end - across->begin;
    for (int i = down->begin; i < down->end; i++)
        widen(source_row(work, i), across->begin, across->end,
              work->between + (i - down->begin) * whole(width));
    for (int at = 0; at < down->scaled; at += LANES) {
        int count = down->scaled - at < LANES ? down->scaled - at : LANES;
        for (int i = 0; i < count; i++) {
            go_down(work->between, width, down, at + i, work->rows);
            for (int j = 0; j < width; j++)
                work->columns[(size_t)j * LANES + i] = work->rows[j];
        }
        go_across(work->columns, across, work->rows, count);
        for (int i = 0; i < count; i++)
            put(work->rows + i * whole(across->scaled), across->scaled,
                work->target.data + (at + i) * work->target.row, &work->target);
    }
}

/* As Pillow chooses, by the whole picture, whatever part of it is scaled. */
static int is_down_first(const Work *work)
{
    int lower = work->down.length - work->down.scaled;
    int narrower = work->across.length - work->across.scaled;
    return lower > 0 && lower > narrower * 2;
}

TARGET static void pass(const Work *work)
{
    if (is_down_first(work))
        down_first(work);
    else
        across_first(work);
}

/* Memory for the passes. What no pass writes is cleared, since whole blocks are read. */
static int take_memory(Work *work)
{
    size_t width = work->across.end - work->across.begin, scaled = whole(work->across.scaled);
    size_t row = is_down_first(work) ? whole((int)width) : scaled;
    size_t count = work->down.end - work->down.begin;
    work->columns = calloc(width, LANES * sizeof(uint32_t));
    work->between = malloc(count * row * sizeof(uint32_t));
    /* A row of the first pass, or a block of rows of the second. */
    work->rows = calloc(row > LANES * scaled ? row : LANES * scaled, sizeof(uint32_t));
    if (work->columns == NULL || work->between == NULL || work->rows == NULL)
        return -1;
    for (size_t i = 0; i < count; i++)
        memset(work->between + (i + 1) * row - LANES, 0, LANES * sizeof(uint32_t));
    return 0;
}

static int do_work(Work *work, const float box[4], int cubic)
{
    int failed = plan_axis(&work->across, box[0], box[2], cubic) ||
                 plan_axis(&work->down, box[1], box[3], cubic) || take_memory(work);
    if (!failed)
        pass(work);
    free_axis(&work->across);
    free_axis(&work->down);
    free(work->columns);
    free(work->between);
    free(work->rows);
    return failed ? -1 : 0;
}

/* Whether a buffer holds pictures of bytes; sets ValueError otherwise. */
static int is_picture(const Py_buffer *view, const char *name)
{
    if (view->ndim == 3 && view->itemsize == 1 && view->shape[2] == CHANNELS &&
        view->format != NULL && strcmp(view->format, "B") == 0 && view->suboffsets == NULL &&
        view->shape[0] >= 1 && view->shape[0] <= SIDE_MAX && view->shape[1] >= 1 &&
        view->shape[1] <= SIDE_MAX)
        return 1;
    PyErr_Format(PyExc_ValueError,
                 "%s is no picture: give bytes [rows, columns, 3] of 1 to %d rows and columns",
                 name, SIDE_MAX);
    return 0;
}

static int is_box(const float box[4], const Source *source)
{
    /* A number that is none fails each comparison. */
    if (box[0] >= 0 && box[1] >= 0 && box[0] < box[2] && box[1] < box[3] &&
        box[2] <= source->width && box[3] <= source->height)
        return 1;
    PyErr_SetString(PyExc_ValueError, "the box is empty or not within the picture");
    return 0;
}

static PyObject *resize(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *given, *out;
    float box[4];
    int cubic, failed = 1;
    Py_buffer from, to;
    if (!PyArg_ParseTuple(args, "OO(ffff)p", &given, &out, box, box + 1, box + 2, box + 3, &cubic))
        return NULL;
    if (PyObject_GetBuffer(given, &from, PyBUF_STRIDED_RO | PyBUF_FORMAT) < 0)
        return NULL;
    if (PyObject_GetBuffer(out, &to, PyBUF_STRIDED | PyBUF_WRITABLE | PyBUF_FORMAT) < 0) {
        PyBuffer_Release(&from);
        return NULL;
    }
    if (is_picture(&from, "the source") && is_picture(&to, "the target")) {
        Work work = {0};
        work.source = (Source){from.buf, from.strides[0], (int)from.shape[0], (int)from.shape[1]};
        work.target = (Target){to.buf, to.strides[0], to.strides[1], to.strides[2]};
        work.across.length = work.source.width;
        work.across.scaled = (int)to.shape[1];
        work.down.length = work.source.height;
        work.down.scaled = (int)to.shape[0];
        if (from.strides[2] != 1 || from.strides[1] != CHANNELS)
            PyErr_SetString(PyExc_ValueError, "the source's pixels do not lie side by side");
        else if (is_box(box, &work.source)) {
            Py_BEGIN_ALLOW_THREADS
            failed = do_work(&work, box, cubic);
            Py_END_ALLOW_THREADS
            if (failed)
                PyErr_NoMemory();
        }
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"resize", resize, METH_VARARGS,
     "resize(source, target, (left, top, right, bottom), cubic): fill the target with this part."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "fermata_resizing", "Pictures at other sizes, as Pillow makes them.", -1,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_fermata_resizing(void)
{
#ifdef __x86_64__
    if (!__builtin_cpu_supports("avx2")) {
        PyErr_SetString(PyExc_ImportError, "the processor has no AVX2");
        return NULL;
    }
#endif
    return PyModule_Create(&definition);
}
