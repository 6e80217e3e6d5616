/* Reading torch's state in C without linking torch.
 *
 * In: field offsets and symbol addresses found and verified by tensors.py. Out: tensor and global-state checks.
 * Always: nothing here is used before tensors.py has proved it against Python's own answers (`layout.ready`).
 */
#ifndef GRAPHLIFT_TORCH_ACCESS_H
#define GRAPHLIFT_TORCH_ACCESS_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#ifdef _WIN32
/* Thread-local symbols cannot be looked up there: torch's modes are compared by Python. */
#define dlopen(path, flags) NULL
#define dlsym(handle, name) NULL
#define THREAD_LOCAL __declspec(thread)
#else
#include <dlfcn.h>
#define THREAD_LOCAL __thread
#endif

#define ANY_DIM INT64_MIN
/* A stride that is another dimension's size times its stride: minus one, minus that dimension. */
#define FOLLOWED(dim) (-1 - (dim))
#define MAX_RANK 64
#define MAX_DTYPES 64

/* Where the facts lie: in the PyObject (impl) and in c10::TensorImpl (the rest). */
typedef struct {
    int ready;
    Py_ssize_t impl;        /* PyObject -> TensorImpl* */
    Py_ssize_t keys;        /* uint64: DispatchKeySet */
    Py_ssize_t rank;        /* uint64: number of dimensions; sizes[5] and strides[5], or a pointer, follow */
    Py_ssize_t type_device; /* uint16 dtype, int8 device type, int8 device index, bool has_device */
    Py_ssize_t storage;     /* StorageImpl* */
    Py_ssize_t offset;      /* int64 storage offset */
    Py_ssize_t history;     /* AutogradMeta*, NULL for tensors that never required grad; 0: unknown */
    Py_ssize_t grad_flag;   /* in AutogradMeta: bool, whether the tensor itself requires grad */
    char (*requires_grad)(const void *impl);
    int32_t (*data_ptr)(void *handle, void **out);
    uint64_t plain_keys;           /* dispatch keys of dense strided tensors without wrappers */
    PyTypeObject *base;            /* torch._C.TensorBase */
    uint8_t item_size[MAX_DTYPES]; /* by dtype number; 0 unknown */
} TensorLayout;

static TensorLayout layout;

/* dtype and device share one word of TensorImpl; the bytes above hold unrelated flags. */
#define TYPE_DEVICE_MASK UINT64_C(0xffffffffff)
#define INLINE_DIMS 5

typedef struct {
    PyTypeObject *cls;    /* kept meaningful by the check's liveness */
    uint64_t keys;
    uint64_t type_device; /* masked */
    uint64_t rank;
    int all_inline;       /* every dimension and stride given and rank <= INLINE_DIMS */
    int has_strides;
    char requires_grad;
    int64_t dims[2 * MAX_RANK]; /* sizes, then strides from dims[rank] */
} TensorSpec;

#define AT(base, off, type) (*(type const *)((const char *)(base) + (off)))

static inline void *tensor_impl(PyObject *tensor) { return AT(tensor, layout.impl, void *); }

static inline const int64_t *impl_sizes(const void *impl, uint64_t rank) {
    const char *inlined = (const char *)impl + layout.rank + 8;
    return rank <= INLINE_DIMS ? (const int64_t *)inlined : *(const int64_t *const *)inlined;
}

static inline const int64_t *impl_strides(const void *impl, uint64_t rank) {
    return impl_sizes(impl, rank) + (rank <= INLINE_DIMS ? INLINE_DIMS : rank);
}

static int dims_match(const TensorSpec *spec, const void *impl) {
    const int64_t *sizes = impl_sizes(impl, spec->rank);
    for (uint64_t i = 0; i < spec->rank; i++)
        if (spec->dims[i] != sizes[i] && spec->dims[i] != ANY_DIM) return 0;
    if (!spec->has_strides) return 1;
    const int64_t *strides = impl_strides(impl, spec->rank), *want = spec->dims + spec->rank;
    for (uint64_t i = 0; i < spec->rank; i++) {
        if (want[i] == strides[i] || want[i] == ANY_DIM) continue;
        if (want[i] >= 0 || sizes[FOLLOWED(want[i])] * strides[FOLLOWED(want[i])] != strides[i]) return 0;
    }
    return 1;
}

/* Reads memory only: no Python runs. The key set is compared before anything whose layout depends on it. */
static inline int tensor_matches(const TensorSpec *spec, PyObject *obj) {
    if (Py_TYPE(obj) != spec->cls) return 0;
    const void *impl = tensor_impl(obj);
    if (impl == NULL || AT(impl, layout.keys, uint64_t) != spec->keys) return 0;
    if ((AT(impl, layout.type_device, uint64_t) & TYPE_DEVICE_MASK) != spec->type_device) return 0;
    if (AT(impl, layout.rank, uint64_t) != spec->rank) return 0;
    if (spec->all_inline) {
        const int64_t *sizes = (const int64_t *)((const char *)impl + layout.rank + 8);
        for (uint64_t i = 0; i < spec->rank; i++)
            if ((sizes[i] ^ spec->dims[i]) | (sizes[INLINE_DIMS + i] ^ spec->dims[spec->rank + i])) return 0;
    } else if (!dims_match(spec, impl)) {
        return 0;
    }
    return (layout.requires_grad(impl) != 0) == spec->requires_grad;
}

/* The bytes a strided tensor spans: [start, end). Empty tensors span nothing. 0 if they cannot be told. */
static int tensor_span(PyObject *tensor, uintptr_t *start, uintptr_t *end) {
    if (!PyObject_TypeCheck(tensor, layout.base)) return 0;
    void *impl = tensor_impl(tensor), *data = NULL;
    if (impl == NULL || (AT(impl, layout.keys, uint64_t) & ~layout.plain_keys) != 0) return 0;
    if (layout.data_ptr((char *)tensor + layout.impl, &data) != 0) return 0;
    uint16_t dtype = AT(impl, layout.type_device, uint16_t);
    uintptr_t item_size = dtype < MAX_DTYPES ? layout.item_size[dtype] : 0;
    if (item_size == 0) return 0;
    uint64_t rank = AT(impl, layout.rank, uint64_t);
    const int64_t *sizes = impl_sizes(impl, rank), *strides = impl_strides(impl, rank);
    uintptr_t extent = item_size;
    for (uint64_t i = 0; i < rank; i++) {
        if (sizes[i] == 0) extent = 0;
        if (extent != 0) extent += (uintptr_t)(sizes[i] - 1) * (uintptr_t)strides[i] * item_size;
    }
    *start = (uintptr_t)data;
    *end = data == NULL ? 0 : (uintptr_t)data + extent; /* meta tensors have no memory to share */
    return 1;
}

/* Torch's modes, read in C. Each function is exported by libc10 or libtorch_cpu under its C++ name. */
typedef struct {
    int ready;
    const uint8_t *(*autograd_state)(void);  /* c10::AutogradState::get_tls_state */
    Py_ssize_t autograd_bits;                /* the byte of it that holds the modes */
    int8_t (*default_dtype)(void);           /* c10::get_default_dtype_as_scalartype */
    int8_t (*autocast_dtype)(int8_t device); /* at::autocast::get_autocast_dtype */
    char (*autocast_cache)(void);            /* at::autocast::is_autocast_cache_enabled */
    int64_t (*dispatch_modes)(void);         /* c10::impl::TorchDispatchModeTLS::stack_len */
    int64_t (*function_modes)(void);         /* at::impl::PythonTorchFunctionTLS::stack_len */
    int8_t (*function_state)(void);          /* at::impl::PythonTorchFunctionTLS::get_disabled_state */
    const void *(*context)(void);            /* at::globalContext */
    char (*deterministic)(const void *);
    char (*deterministic_warn)(const void *);
    void *c10;              /* dlopen handle: thread-local symbols are resolved once per thread */
    uint64_t raw_default[2]; /* raw thread-local key sets are stored xor these */
    PyObject *forward_ad;   /* dict of torch.autograd.forward_ad */
    PyObject *level_name;
} TorchState;

static TorchState torch_state;

#define AUTOGRAD_BITS 0x7 /* grad, inference, forward grad */

typedef struct {
    uint8_t autograd;
    int8_t default_dtype;
    int8_t deterministic, deterministic_warn;
    int8_t function_state, function_modes; /* how many; which ones they are, relations ask */
    int8_t autocast_on; /* any of cpu, cuda */
    int8_t autocast_cache;
    int8_t autocast_dtype[2]; /* -1: off, not compared */
    int64_t forward_ad_level;
    uint64_t keys[2];
    uint64_t level_tag; /* version tag of the forward_ad dict when last found equal */
} GlobalFacts;

static THREAD_LOCAL const uint64_t *thread_keys;

static const uint64_t *local_keys(void) {
    if (thread_keys == NULL)
        thread_keys = dlsym(torch_state.c10, "_ZN3c104impl26raw_local_dispatch_key_setE");
    return thread_keys;
}

static int read_level(int64_t *out) {
    PyObject *level = PyDict_GetItemWithError(torch_state.forward_ad, torch_state.level_name);
    if (level == NULL || !PyLong_CheckExact(level)) {
        PyErr_Clear();
        return 0;
    }
    *out = PyLong_AsLongLong(level);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

static inline uint64_t dict_version(PyObject *dict);

static int global_matches(GlobalFacts *want) {
    const uint64_t *keys = local_keys();
    if (keys == NULL) return 0;
    if ((keys[0] ^ torch_state.raw_default[0]) != want->keys[0]) return 0;
    if ((keys[1] ^ torch_state.raw_default[1]) != want->keys[1]) return 0;
    if ((torch_state.autograd_state()[torch_state.autograd_bits] & AUTOGRAD_BITS) != want->autograd) return 0;
    if (torch_state.default_dtype() != want->default_dtype) return 0;
    if (torch_state.dispatch_modes() != 0 || torch_state.function_modes() != want->function_modes) return 0;
    if (torch_state.function_state() != want->function_state) return 0;
    const void *context = torch_state.context();
    if (torch_state.deterministic(context) != want->deterministic) return 0;
    if (torch_state.deterministic_warn(context) != want->deterministic_warn) return 0;
    if (want->autocast_on) {
        if (torch_state.autocast_cache() != want->autocast_cache) return 0;
        for (int8_t d = 0; d < 2; d++)
            if (want->autocast_dtype[d] >= 0 && torch_state.autocast_dtype(d) != want->autocast_dtype[d]) return 0;
    }
    uint64_t tag = dict_version(torch_state.forward_ad);
    if (tag == 0 || tag != want->level_tag) {
        int64_t level;
        if (!read_level(&level) || level != want->forward_ad_level) return 0;
        want->level_tag = tag;
    }
    return 1;
}

#endif
