/* The native launcher: runs a planned graph step by step with no Python in between.
 *
 * In: slots (where tensors live) and steps (kernels, ATen calls, checks) as tuples; per call a list of tensors, and of
 * ints for sizes that vary, from which a small program computes all others first.
 * Out: a list of output tensors. Always: every reference taken in a call is released at its end, on errors too; a
 * launcher is immutable after construction, so calls may nest and overlap between threads.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#define HANDLE_OFFSET 16 /* at::Tensor inside the Python object; checked by bind() */

typedef void *Handle;
typedef int32_t (*get_data_ptr_t)(Handle, void **);
typedef int32_t (*empty_strided_t)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Handle *);
typedef int32_t (*from_blob_t)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t,
                               Handle *);
typedef int32_t (*reinterpret_t)(Handle, int64_t, const int64_t *, const int64_t *, int64_t, Handle *);
typedef int32_t (*delete_t)(Handle);
typedef int32_t (*mm_t)(Handle, Handle, Handle);
typedef int32_t (*addmm_t)(Handle, Handle, Handle, Handle, double, double);
typedef PyObject *(*wrap_t)(const void *);
typedef void (*kernel_t)(void **);
typedef int (*grad_enabled_t)(void);
typedef void (*set_grad_t)(int);

static struct {
    get_data_ptr_t get_data_ptr;
    empty_strided_t empty_strided;
    from_blob_t from_blob;
    reinterpret_t reinterpret;
    delete_t delete_handle;
    wrap_t wrap;
    grad_enabled_t grad_enabled;
    set_grad_t set_grad;
} torch_api;
static int bound;

enum SlotKind { INPUT, CONSTANT, ARENA, FRESH, VIEW, RESULT, NUMBER, REAL };
enum StepKind { KERNEL, EXTERN, MM_OUT, ADDMM_OUT, CHECK, ALLOCATE };
enum SizeOp { ADD, MULTIPLY, FLOORDIV, MINIMUM, MAXIMUM };

typedef struct {
    int op, target, a, b;
} SizeStep;

/* Registers of sizes: their first values, the program that fills them. */
typedef struct {
    Py_ssize_t count, inputs, steps, geometry;
    int64_t *first;
    int *input; /* pairs: position among the inputs, register */
    SizeStep *program;
    int *registers; /* of the shapes and strides of all slots that vary */
    int arena;      /* the register of the arena's size, or -1 */
} Sizes;

typedef struct {
    int kind, ndim, base, itemsize;
    int32_t dtype;
    Py_ssize_t index; /* position among the inputs, or byte offset in the arena */
    int64_t shift;    /* elements from the base, for views */
    int64_t *shape, *stride;
    PyObject *constant;
    int varying;         /* index (in the arena), shift, shape and stride are registers */
    Py_ssize_t geometry; /* where shape and stride of this call are, then */
} Slot;

typedef struct {
    int kind, count, outputs, release_gil, frees;
    kernel_t kernel;
    void *native;
    double beta, alpha;
    PyObject *callable; /* the ATen call in Python; also the way back when the native call reports an error */
    int *slots, *out, *free;
} Step;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t inputs, slot_count, step_count, output_count, widest, arena_bytes;
    Slot *slots;
    Step *steps;
    Sizes sizes;
    PyObject **outputs; /* None, an int (slot) or any constant */
} Launcher;

typedef struct {
    PyObject *object;
    Handle handle;
    char *data;
    unsigned char owns_object, owns_handle;
} Live;

typedef struct {
    Launcher *launcher;
    PyObject *const *inputs;
    Live *live;
    void **pointers;
    char *arena;
    size_t arena_size;
    int64_t *sizes, *geometry, *numbers; /* registers; shapes and strides; the sizes a kernel is given */
} Call;

/* --- the arena: one block kept between calls, under the GIL ------------------------------------------------------ */

static char *kept_block;
static size_t kept_size;
static size_t keep_limit = (size_t)256 << 20;

static char *take_arena(size_t size, size_t *got) {
    if (kept_block && kept_size >= size) {
        char *block = kept_block;
        *got = kept_size;
        kept_block = NULL;
        return block;
    }
    size_t rounded = (size + 4095) & ~(size_t)4095;
    *got = rounded;
    return aligned_alloc(4096, rounded);
}

static void give_arena(char *block, size_t size) {
    if (!block) return;
    if (size <= keep_limit && (!kept_block || kept_size < size)) {
        free(kept_block);
        kept_block = block;
        kept_size = size;
    } else {
        free(block);
    }
}

/* --- tensors of a call ------------------------------------------------------------------------------------------- */

static void drop(Live *live) {
    if (live->owns_handle) torch_api.delete_handle(live->handle);
    if (live->owns_object) Py_DECREF(live->object);
    memset(live, 0, sizeof *live);
}

static int torch_failed(const char *what) {
    PyErr_Format(PyExc_RuntimeError, "graphlift launcher: %s failed", what);
    return -1;
}

/* Where a tensor is and how it looks in this call. */
static const int64_t *shape_of(Call *call, Slot *slot) {
    return slot->varying ? call->geometry + slot->geometry : slot->shape;
}

static const int64_t *stride_of(Call *call, Slot *slot) {
    return slot->varying ? call->geometry + slot->geometry + slot->ndim : slot->stride;
}

static int64_t shift_of(Call *call, Slot *slot) { return slot->varying ? call->sizes[slot->shift] : slot->shift; }

static char *place_of(Call *call, Slot *slot) {
    return call->arena + (slot->varying ? call->sizes[slot->index] : slot->index);
}

static int allocate(Call *call, int k) {
    Slot *slot = &call->launcher->slots[k];
    Live *live = &call->live[k];
    if (torch_api.empty_strided(slot->ndim, shape_of(call, slot), stride_of(call, slot), slot->dtype, 0, 0,
                                &live->handle))
        return torch_failed("allocation");
    live->owns_handle = 1;
    return 0;
}

static Handle handle_of(Call *call, int k) {
    Slot *slot = &call->launcher->slots[k];
    Live *live = &call->live[k];
    if (live->handle) return live->handle;
    switch (slot->kind) {
    case INPUT:
        live->object = call->inputs[slot->index];
        return live->handle = (char *)live->object + HANDLE_OFFSET;
    case CONSTANT:
        live->object = slot->constant;
        return live->handle = (char *)live->object + HANDLE_OFFSET;
    case ARENA:
        if (torch_api.from_blob(place_of(call, slot), slot->ndim, shape_of(call, slot), stride_of(call, slot), 0,
                                slot->dtype, 0, 0, &live->handle)) {
            torch_failed("making a tensor over planned memory");
            return NULL;
        }
        live->owns_handle = 1;
        return live->handle;
    case FRESH:
        return allocate(call, k) ? NULL : live->handle;
    case VIEW: {
        Handle base = handle_of(call, slot->base);
        if (!base) return NULL;
        if (torch_api.reinterpret(base, slot->ndim, shape_of(call, slot), stride_of(call, slot), shift_of(call, slot),
                                  &live->handle)) {
            torch_failed("making a view");
            return NULL;
        }
        live->owns_handle = 1;
        return live->handle;
    }
    default:
        PyErr_SetString(PyExc_RuntimeError, "graphlift launcher: a tensor is used before it is computed");
        return NULL;
    }
}

static char *data_of(Call *call, int k) {
    Slot *slot = &call->launcher->slots[k];
    Live *live = &call->live[k];
    if (live->data) return live->data;
    if (slot->kind == ARENA) return live->data = place_of(call, slot);
    if (slot->kind == VIEW && !live->handle) {
        char *base = data_of(call, slot->base);
        return base || !PyErr_Occurred() ? live->data = base + shift_of(call, slot) * slot->itemsize : NULL;
    }
    Handle handle = handle_of(call, k);
    void *data = NULL;
    if (handle && torch_api.get_data_ptr(handle, &data)) torch_failed("reading a tensor's address");
    return live->data = data; /* NULL for empty tensors too: then kernels have nothing to touch */
}

/* Borrowed from the call. */
static PyObject *object_of(Call *call, int k) {
    Live *live = &call->live[k];
    if (live->object) return live->object;
    Slot *slot = &call->launcher->slots[k];
    if (slot->kind == NUMBER) {
        live->owns_object = (live->object = PyLong_FromLongLong(call->sizes[slot->index])) != NULL;
        return live->object;
    }
    if (slot->kind == REAL) {
        double value;
        memcpy(&value, &call->sizes[slot->index], sizeof value);
        live->owns_object = (live->object = PyFloat_FromDouble(value)) != NULL;
        return live->object;
    }
    Handle handle = handle_of(call, k);
    if (!handle) return NULL;
    if (live->object) return live->object; /* inputs and constants */
    live->object = torch_api.wrap(handle);
    if (!live->object) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "graphlift launcher: wrapping a tensor failed");
        return NULL;
    }
    live->owns_object = 1;
    return live->object;
}

static void bind_result(Call *call, int k, PyObject *stolen) {
    Live *live = &call->live[k];
    drop(live);
    live->object = stolen;
    live->owns_object = 1;
    live->handle = (char *)stolen + HANDLE_OFFSET;
}

/* --- steps ------------------------------------------------------------------------------------------------------- */

static int run_extern(Call *call, Step *step) {
    PyObject **args = (PyObject **)call->pointers;
    for (int i = 0; i < step->count; i++)
        if (!(args[i + 1] = object_of(call, step->slots[i]))) return -1;
    PyObject *result = PyObject_Vectorcall(step->callable, args + 1, step->count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (!result) return -1;
    if (step->outputs == 1 && !PyTuple_Check(result) && !PyList_Check(result)) {
        if (step->out[0] >= 0) bind_result(call, step->out[0], result);
        else Py_DECREF(result);
        return 0;
    }
    if (step->outputs == 0) {
        Py_DECREF(result);
        return 0;
    }
    PyObject *items = PySequence_Fast(result, "graphlift launcher: an ATen call returned no sequence");
    Py_DECREF(result);
    if (!items) return -1;
    if (PySequence_Fast_GET_SIZE(items) < step->outputs) {
        Py_DECREF(items);
        PyErr_SetString(PyExc_RuntimeError, "graphlift launcher: an ATen call returned too few results");
        return -1;
    }
    for (int i = 0; i < step->outputs; i++)
        if (step->out[i] >= 0) {
            PyObject *item = PySequence_Fast_GET_ITEM(items, i);
            Py_INCREF(item);
            bind_result(call, step->out[i], item);
        }
    Py_DECREF(items);
    return 0;
}

/* slots[0] is the output. On an error report the same call is made in Python, which raises what ATen raises. */
static int run_matmul(Call *call, Step *step) {
    Handle h[4];
    for (int i = 0; i < step->count; i++)
        if (!(h[i] = handle_of(call, step->slots[i]))) return -1;
    int32_t failed;
    PyThreadState *state = step->release_gil ? PyEval_SaveThread() : NULL;
    if (step->kind == MM_OUT) failed = ((mm_t)step->native)(h[0], h[1], h[2]);
    else failed = ((addmm_t)step->native)(h[0], h[1], h[2], h[3], step->beta, step->alpha);
    if (state) PyEval_RestoreThread(state);
    if (!failed) return 0;
    PyObject **args = (PyObject **)call->pointers;
    for (int i = 0; i < step->count; i++)
        if (!(args[i + 1] = object_of(call, step->slots[i]))) return -1;
    PyObject *result = PyObject_Vectorcall(step->callable, args + 1, step->count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (!result) return -1;
    Py_DECREF(result);
    return 0;
}

/* The sizes that a kernel is given follow its base pointers, as a pointer to them. */
static int run_kernel(Call *call, Step *step) {
    for (int i = 0; i < step->count; i++) {
        call->pointers[i] = data_of(call, step->slots[i]);
        if (!call->pointers[i] && PyErr_Occurred()) return -1;
    }
    if (step->outputs) {
        for (int i = 0; i < step->outputs; i++) call->numbers[i] = call->sizes[step->out[i]];
        call->pointers[step->count] = call->numbers;
    }
    if (step->release_gil) {
        PyThreadState *state = PyEval_SaveThread();
        step->kernel(call->pointers);
        PyEval_RestoreThread(state);
    } else {
        step->kernel(call->pointers);
    }
    return 0;
}

static int run_check(Call *call, Step *step) {
    char *flag = data_of(call, step->slots[0]);
    if (!flag && PyErr_Occurred()) return -1;
    if (!flag || !*flag) return 0;
    return run_extern(call, step);
}

static int run_step(Call *call, Step *step) {
    switch (step->kind) {
    case KERNEL: return run_kernel(call, step);
    case EXTERN: return run_extern(call, step);
    case MM_OUT:
    case ADDMM_OUT: return run_matmul(call, step);
    case CHECK: return run_check(call, step);
    default: return allocate(call, step->slots[0]);
    }
}

static PyObject *collect(Call *call) {
    Launcher *self = call->launcher;
    PyObject *result = PyList_New(self->output_count);
    if (!result) return NULL;
    for (Py_ssize_t i = 0; i < self->output_count; i++) {
        PyObject *item = self->outputs[i];
        if (PyLong_CheckExact(item)) item = object_of(call, (int)PyLong_AsLong(item));
        else if (PyTuple_CheckExact(item)) item = PyTuple_GET_ITEM(item, 0);
        if (!item) {
            Py_DECREF(result);
            return NULL;
        }
        Py_INCREF(item);
        PyList_SET_ITEM(result, i, item);
    }
    return result;
}

static int64_t floor_divide(int64_t a, int64_t b) {
    int64_t quotient = a / b;
    return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

static int compute_sizes(Call *call) {
    Sizes *sizes = &call->launcher->sizes;
    int64_t *r = call->sizes;
    memcpy(r, sizes->first, sizes->count * sizeof *r);
    for (Py_ssize_t i = 0; i < sizes->inputs; i++) {
        PyObject *given = call->inputs[sizes->input[2 * i]];
        int64_t *to = &r[sizes->input[2 * i + 1]];
        if (PyFloat_Check(given)) { /* travels as its bits */
            double real = PyFloat_AS_DOUBLE(given);
            memcpy(to, &real, sizeof real);
            continue;
        }
        long long value = PyLong_AsLongLong(given);
        if (value == -1 && PyErr_Occurred()) return -1;
        *to = value;
    }
    for (Py_ssize_t i = 0; i < sizes->steps; i++) {
        SizeStep *step = &sizes->program[i];
        int64_t a = r[step->a], b = r[step->b];
        switch (step->op) {
        case ADD: r[step->target] = a + b; break;
        case MULTIPLY: r[step->target] = a * b; break;
        case MINIMUM: r[step->target] = a < b ? a : b; break;
        case MAXIMUM: r[step->target] = a > b ? a : b; break;
        default:
            if (!b) {
                PyErr_SetString(PyExc_ZeroDivisionError, "integer division or modulo by zero");
                return -1;
            }
            r[step->target] = floor_divide(a, b);
        }
    }
    for (Py_ssize_t i = 0; i < sizes->geometry; i++) call->geometry[i] = r[sizes->registers[i]];
    return 0;
}

static PyObject *run(Launcher *self, PyObject *const *inputs) {
    size_t live_bytes = self->slot_count * sizeof(Live), pointer_bytes = (self->widest + 2) * sizeof(void *);
    size_t size_bytes = (2 * self->sizes.count + self->sizes.geometry) * sizeof(int64_t);
    char small[4096];
    size_t needed = live_bytes + pointer_bytes + size_bytes;
    char *scratch = needed <= sizeof small ? small : malloc(needed);
    if (!scratch) return PyErr_NoMemory();
    memset(scratch, 0, live_bytes);
    int64_t *numbers = (int64_t *)(scratch + live_bytes + pointer_bytes);
    Call call = {self, inputs, (Live *)scratch, (void **)(scratch + live_bytes), NULL, 0,
                 numbers + self->sizes.count, numbers + 2 * self->sizes.count, numbers};
    PyObject *result = NULL;
    size_t arena_bytes = self->arena_bytes;
    int grad = torch_api.grad_enabled();
    if (grad) torch_api.set_grad(0);
    if (self->sizes.count) {
        if (compute_sizes(&call)) goto done;
        if (self->sizes.arena >= 0) arena_bytes = call.sizes[self->sizes.arena];
    }
    if (arena_bytes && !(call.arena = take_arena(arena_bytes, &call.arena_size))) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < self->step_count; i++) {
        Step *step = &self->steps[i];
        if (run_step(&call, step)) goto done;
        for (int k = 0; k < step->frees; k++) drop(&call.live[step->free[k]]);
    }
    result = collect(&call);
done:
    for (Py_ssize_t k = self->slot_count - 1; k >= 0; k--) drop(&call.live[k]);
    give_arena(call.arena, call.arena_size);
    if (grad) torch_api.set_grad(1);
    if (scratch != small) free(scratch);
    return result;
}

static PyObject *launcher_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Launcher *self = (Launcher *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames && PyTuple_GET_SIZE(kwnames))) {
        PyErr_SetString(PyExc_TypeError, "a compiled graph takes one list of tensors");
        return NULL;
    }
    PyObject *items = PySequence_Fast(args[0], "a compiled graph takes one list of tensors");
    if (!items) return NULL;
    if (PySequence_Fast_GET_SIZE(items) != self->inputs) {
        PyErr_Format(PyExc_TypeError, "a compiled graph of %zd inputs got %zd", self->inputs,
                     PySequence_Fast_GET_SIZE(items));
        Py_DECREF(items);
        return NULL;
    }
    /* A list could change while ATen runs Python code: hold the tensors ourselves. */
    PyObject *held = PyList_CheckExact(items) ? PyList_AsTuple(items) : Py_NewRef(items);
    Py_DECREF(items);
    if (!held) return NULL;
    PyObject *result = run(self, &PyTuple_GET_ITEM(held, 0));
    Py_DECREF(held);
    return result;
}

/* --- construction ------------------------------------------------------------------------------------------------ */

static int64_t *int64_array(PyObject *tuple) {
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    int64_t *out = PyMem_Malloc((n + 1) * sizeof *out);
    for (Py_ssize_t i = 0; out && i < n; i++) out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    return out;
}

static int *int_array(PyObject *tuple, int *count) {
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    int *out = PyMem_Malloc((n + 1) * sizeof *out);
    for (Py_ssize_t i = 0; out && i < n; i++) out[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
    *count = (int)n;
    return out;
}

static int read_slot(Slot *slot, PyObject *row) {
    PyObject *shape, *stride, *constant;
    long long index, shift;
    if (!PyArg_ParseTuple(row, "iLiLiiO!O!Oi", &slot->kind, &index, &slot->base, &shift, &slot->dtype, &slot->itemsize,
                          &PyTuple_Type, &shape, &PyTuple_Type, &stride, &constant, &slot->varying))
        return -1;
    slot->index = index;
    slot->shift = shift;
    slot->ndim = (int)PyTuple_GET_SIZE(shape);
    slot->shape = int64_array(shape);
    slot->stride = int64_array(stride);
    if (constant != Py_None) slot->constant = Py_NewRef(constant);
    return slot->shape && slot->stride ? 0 : -1;
}

static int read_step(Step *step, PyObject *row) {
    PyObject *slots, *out, *frees, *callable;
    unsigned long long address;
    if (!PyArg_ParseTuple(row, "iKddiOO!O!O!", &step->kind, &address, &step->beta, &step->alpha, &step->release_gil,
                          &callable, &PyTuple_Type, &slots, &PyTuple_Type, &out, &PyTuple_Type, &frees))
        return -1;
    step->kernel = (kernel_t)(uintptr_t)address;
    step->native = (void *)(uintptr_t)address;
    if (callable != Py_None) step->callable = Py_NewRef(callable);
    step->slots = int_array(slots, &step->count);
    step->out = int_array(out, &step->outputs);
    step->free = int_array(frees, &step->frees);
    return step->slots && step->out && step->free ? 0 : -1;
}

static int read_sizes(Launcher *self, PyObject *row) {
    Sizes *sizes = &self->sizes;
    PyObject *first, *inputs, *program;
    if (!PyArg_ParseTuple(row, "O!O!O!i", &PyTuple_Type, &first, &PyTuple_Type, &inputs, &PyTuple_Type, &program,
                          &sizes->arena))
        return -1;
    sizes->count = PyTuple_GET_SIZE(first);
    sizes->inputs = PyTuple_GET_SIZE(inputs);
    sizes->steps = PyTuple_GET_SIZE(program);
    sizes->first = int64_array(first);
    sizes->input = PyMem_Malloc((2 * sizes->inputs + 1) * sizeof(int));
    sizes->program = PyMem_Malloc((sizes->steps + 1) * sizeof(SizeStep));
    if (!sizes->first || !sizes->input || !sizes->program) return -1;
    for (Py_ssize_t i = 0; i < sizes->inputs; i++)
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(inputs, i), "ii", &sizes->input[2 * i], &sizes->input[2 * i + 1]))
            return -1;
    for (Py_ssize_t i = 0; i < sizes->steps; i++) {
        SizeStep *step = &sizes->program[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(program, i), "iiii", &step->op, &step->target, &step->a, &step->b))
            return -1;
    }
    for (Py_ssize_t i = 0; i < self->slot_count; i++)
        if (self->slots[i].varying) {
            self->slots[i].geometry = sizes->geometry;
            sizes->geometry += 2 * self->slots[i].ndim;
        }
    sizes->registers = PyMem_Malloc((sizes->geometry + 1) * sizeof(int));
    if (!sizes->registers) return -1;
    for (Py_ssize_t i = 0; i < self->slot_count; i++) {
        Slot *slot = &self->slots[i];
        for (int d = 0; slot->varying && d < slot->ndim; d++) {
            sizes->registers[slot->geometry + d] = (int)slot->shape[d];
            sizes->registers[slot->geometry + slot->ndim + d] = (int)slot->stride[d];
        }
    }
    return 0;
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *slots, *steps, *outputs, *sizes;
    Py_ssize_t inputs, arena;
    if (!bound) {
        PyErr_SetString(PyExc_RuntimeError, "graphlift launcher: bind() was not called");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "nnO!O!O!O!", &inputs, &arena, &PyTuple_Type, &slots, &PyTuple_Type, &steps,
                          &PyTuple_Type, &outputs, &PyTuple_Type, &sizes))
        return NULL;
    Launcher *self = (Launcher *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->vectorcall = launcher_call;
    self->inputs = inputs;
    self->arena_bytes = arena;
    Py_ssize_t ns = PyTuple_GET_SIZE(slots), nt = PyTuple_GET_SIZE(steps), no = PyTuple_GET_SIZE(outputs);
    self->slots = PyMem_Calloc(ns + 1, sizeof(Slot));
    self->steps = PyMem_Calloc(nt + 1, sizeof(Step));
    self->outputs = PyMem_Calloc(no + 1, sizeof(PyObject *));
    if (!self->slots || !self->steps || !self->outputs) goto failed;
    self->slot_count = ns;
    self->step_count = nt;
    for (Py_ssize_t i = 0; i < ns; i++)
        if (read_slot(&self->slots[i], PyTuple_GET_ITEM(slots, i))) goto failed;
    if (read_sizes(self, sizes)) goto failed;
    for (Py_ssize_t i = 0; i < nt; i++) {
        if (read_step(&self->steps[i], PyTuple_GET_ITEM(steps, i))) goto failed;
        if (self->steps[i].count > self->widest) self->widest = self->steps[i].count;
    }
    for (; self->output_count < no; self->output_count++)
        self->outputs[self->output_count] = Py_NewRef(PyTuple_GET_ITEM(outputs, self->output_count));
    return (PyObject *)self;
failed:
    if (!PyErr_Occurred()) PyErr_NoMemory();
    Py_DECREF(self);
    return NULL;
}

static int launcher_traverse(Launcher *self, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0; i < self->slot_count; i++) Py_VISIT(self->slots[i].constant);
    for (Py_ssize_t i = 0; i < self->step_count; i++) Py_VISIT(self->steps[i].callable);
    for (Py_ssize_t i = 0; i < self->output_count; i++) Py_VISIT(self->outputs[i]);
    return 0;
}

static int launcher_clear(Launcher *self) {
    for (Py_ssize_t i = 0; i < self->slot_count; i++) Py_CLEAR(self->slots[i].constant);
    for (Py_ssize_t i = 0; i < self->step_count; i++) Py_CLEAR(self->steps[i].callable);
    for (Py_ssize_t i = 0; i < self->output_count; i++) Py_CLEAR(self->outputs[i]);
    return 0;
}

static void launcher_dealloc(Launcher *self) {
    PyObject_GC_UnTrack(self);
    launcher_clear(self);
    for (Py_ssize_t i = 0; i < self->slot_count; i++) {
        PyMem_Free(self->slots[i].shape);
        PyMem_Free(self->slots[i].stride);
    }
    for (Py_ssize_t i = 0; i < self->step_count; i++) {
        PyMem_Free(self->steps[i].slots);
        PyMem_Free(self->steps[i].out);
        PyMem_Free(self->steps[i].free);
    }
    PyMem_Free(self->slots);
    PyMem_Free(self->steps);
    PyMem_Free(self->outputs);
    PyMem_Free(self->sizes.first);
    PyMem_Free(self->sizes.input);
    PyMem_Free(self->sizes.program);
    PyMem_Free(self->sizes.registers);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef launcher_members[] = {
    {"arena_bytes", T_PYSSIZET, offsetof(Launcher, arena_bytes), READONLY, "bytes of intermediates at the peak"},
    {"steps", T_PYSSIZET, offsetof(Launcher, step_count), READONLY, "number of steps"},
    {NULL},
};

static PyTypeObject LauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "graphlift.runtime._launch.Launcher",
    .tp_doc = "Launcher(inputs, arena_bytes, slots, steps, outputs, sizes): a planned graph; takes a list of inputs.",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Launcher, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = launcher_new,
    .tp_traverse = (traverseproc)launcher_traverse,
    .tp_clear = (inquiry)launcher_clear,
    .tp_dealloc = (destructor)launcher_dealloc,
    .tp_members = launcher_members,
};

/* --- the module -------------------------------------------------------------------------------------------------- */

static int address(PyObject *table, const char *name, void **out) {
    PyObject *value = PyDict_GetItemString(table, name);
    *out = value ? PyLong_AsVoidPtr(value) : NULL;
    return *out != NULL;
}

static PyObject *bind(PyObject *module, PyObject *args) {
    PyObject *table, *tensor;
    unsigned long long impl;
    if (!PyArg_ParseTuple(args, "O!OK", &PyDict_Type, &table, &tensor, &impl)) return NULL;
    int ok = address(table, "aoti_torch_get_data_ptr", (void **)&torch_api.get_data_ptr) &&
             address(table, "aoti_torch_empty_strided", (void **)&torch_api.empty_strided) &&
             address(table, "aoti_torch_create_tensor_from_blob", (void **)&torch_api.from_blob) &&
             address(table, "aoti_torch__reinterpret_tensor", (void **)&torch_api.reinterpret) &&
             address(table, "aoti_torch_delete_tensor_object", (void **)&torch_api.delete_handle) &&
             address(table, "aoti_torch_grad_mode_is_enabled", (void **)&torch_api.grad_enabled) &&
             address(table, "aoti_torch_grad_mode_set_enabled", (void **)&torch_api.set_grad) &&
             address(table, "_Z16THPVariable_WrapRKN2at10TensorBaseE", (void **)&torch_api.wrap);
    /* The object must hold an at::Tensor, which is a pointer to its TensorImpl, where we expect it. */
    uintptr_t stored;
    memcpy(&stored, (char *)tensor + HANDLE_OFFSET, sizeof stored);
    bound = ok && stored == (uintptr_t)impl;
    return PyBool_FromLong(bound);
}

static PyObject *release_memory(PyObject *module, PyObject *unused) {
    free(kept_block);
    kept_block = NULL;
    Py_RETURN_NONE;
}

static PyObject *kept_bytes(PyObject *module, PyObject *unused) {
    return PyLong_FromSize_t(kept_block ? kept_size : 0);
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_VARARGS, "bind(addresses, tensor, tensor._cdata) -> whether the launcher can run here"},
    {"release_memory", release_memory, METH_NOARGS, "free the block kept for intermediates"},
    {"kept_bytes", kept_bytes, METH_NOARGS, "size of the block kept for intermediates"},
    {NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launch", "Native launcher of planned graphs.", -1, methods};

PyMODINIT_FUNC PyInit__launch(void) {
    if (PyType_Ready(&LauncherType)) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddObjectRef(module, "Launcher", (PyObject *)&LauncherType)) Py_CLEAR(module);
    return module;
}
