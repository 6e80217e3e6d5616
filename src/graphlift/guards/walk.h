/* The general evaluator: loads every source from the call's arguments and runs its checks.
 *
 * In: a program and the value of a root. Out: 1 and values in their slots, or 0.
 * Always: each value on the path is owned while its subtree is evaluated, so user code (a dict key's __eq__, a
 * finalizer) may run at any point without harm; every exception becomes a failed check.
 */
#ifndef GRAPHLIFT_WALK_H
#define GRAPHLIFT_WALK_H

#include "program.h"
#include "constants.h"
#include <structmember.h>

/* PyMemberDef types have public names from 3.12 on. */
#if PY_VERSION_HEX >= 0x030C0000
#define FIELD_OBJECT_OR_NONE _Py_T_OBJECT
#define FIELD_OBJECT Py_T_OBJECT_EX
#else
#define FIELD_OBJECT_OR_NONE T_OBJECT
#define FIELD_OBJECT T_OBJECT_EX
#endif

static PyObject *failed(void) {
    PyErr_Clear();
    return NULL;
}

/* New reference, or NULL (absent, or an error that has been cleared). Only the stored value: no __missing__. */
static PyObject *dict_lookup(State *st, PyObject *dict, PyObject *key) {
    if (!only_str_keys(dict) || !PyUnicode_CheckExact(key)) st->impure = 1;
    PyObject *value = PyDict_GetItemWithError(dict, key);
    if (value == NULL) return failed();
    return Py_NewRef(value);
}

/* Calls `visit` on each key in iteration order until it returns 0. OrderedDict keeps an order of its own. */
typedef int (*KeyVisitor)(void *context, Py_ssize_t i, PyObject *key);

static int visit_keys(State *st, PyObject *dict, KeyVisitor visit, void *context) {
    PyObject *key, *value;
    Py_ssize_t pos = 0, i = 0;
    if (!PyODict_Check(dict)) {
        while (PyDict_Next(dict, &pos, &key, &value))
            if (!visit(context, i++, key)) return 0;
        return 1;
    }
    st->impure = 1;
    PyObject *iterator = PyODict_Type.tp_iter(dict);
    if (iterator == NULL) {
        PyErr_Clear();
        return 0;
    }
    int ok = 1;
    while (ok && (key = Py_TYPE(iterator)->tp_iternext(iterator)) != NULL) {
        ok = visit(context, i++, key);
        Py_DECREF(key);
    }
    if (PyErr_Occurred()) {
        PyErr_Clear();
        ok = 0;
    }
    Py_DECREF(iterator);
    return ok;
}

typedef struct {
    Py_ssize_t index;
    PyObject *found;
} KeyAt;

static int take_key(void *context, Py_ssize_t i, PyObject *key) {
    KeyAt *at = context;
    if (i != at->index) return 1;
    at->found = Py_NewRef(key);
    return 0;
}

typedef struct {
    const Check *check;
    const Leaf *leaf;
    Py_ssize_t count;
} KeyList;

static int compare_key(void *context, Py_ssize_t i, PyObject *key) {
    KeyList *list = context;
    if (i >= PyTuple_GET_SIZE(list->leaf->obj)) return 0;
    int32_t ref = list->leaf->key_refs[i];
    list->count++;
    if (ref >= 0) return key == held(list->check, ref);
    return const_equal(PyTuple_GET_ITEM(list->leaf->obj, i), key);
}

static int keys_match(State *st, const Leaf *leaf, PyObject *dict) {
    Py_ssize_t n = PyTuple_GET_SIZE(leaf->obj);
    if (!PyDict_Check(dict) || ((PyDictObject *)dict)->ma_used != n) return 0;
    if (n == 0) return 1;
    KeyList list = {st->check, leaf, 0};
    return visit_keys(st, dict, compare_key, &list) && list.count == n;
}

static PyTypeObject *deque_type;

/* -1 where the length is not that of C storage. */
static Py_ssize_t storage_length(PyObject *obj) {
    if (PyList_Check(obj) || PyTuple_Check(obj)) return Py_SIZE(obj);
    if (PyDict_Check(obj)) return ((PyDictObject *)obj)->ma_used;
    if (PyAnySet_Check(obj)) return PySet_GET_SIZE(obj);
    if (PyUnicode_Check(obj)) return PyUnicode_GET_LENGTH(obj);
    if (PyBytes_Check(obj)) return PyBytes_GET_SIZE(obj);
    /* C types of which we know that their length runs no user code. */
    PyTypeObject *type = Py_TYPE(obj);
    if (type != &PyRange_Type && type != &PyByteArray_Type && type != deque_type && !PyDictViewSet_Check(obj) &&
        !PyDictValues_Check(obj))
        return -1;
    Py_ssize_t n = PyObject_Size(obj);
    if (n < 0) PyErr_Clear();
    return n;
}

static int call_predicate(State *st, PyObject *fn, PyObject *const *args, Py_ssize_t n) {
    st->impure = 1;
    PyObject *result = PyObject_Vectorcall(fn, args, n, NULL);
    int truth = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    if (truth < 0) PyErr_Clear();
    return truth == 1;
}

static int leaf_passes(State *st, const Leaf *leaf, PyObject *obj) {
    switch (leaf->kind) {
    case L_TYPE:
        return (PyObject *)Py_TYPE(obj) == held(st->check, leaf->ref);
    case L_ID:
        return obj == held(st->check, leaf->ref);
    case L_EQUAL:
        return const_equal(leaf->obj, obj);
    case L_LENGTH:
        return storage_length(obj) == leaf->n;
    case L_KEYS:
        return keys_match(st, leaf, obj);
    case L_HAS_KEY: {
        if (!PyDict_Check(obj)) return 0;
        PyObject *key = leaf->ref >= 0 ? held(st->check, leaf->ref) : leaf->obj;
        if (!only_str_keys(obj) || !PyUnicode_CheckExact(key)) st->impure = 1;
        int found = PyDict_Contains(obj, key);
        if (found < 0) {
            PyErr_Clear();
            return 0;
        }
        return found == leaf->present;
    }
    case L_TENSOR:
        return tensor_matches(leaf->spec, obj);
    default: /* L_TENSOR_SLOW */
        return call_predicate(st, leaf->obj, &obj, 1);
    }
}

static int leaves_pass(State *st, const Node *node, PyObject *obj) {
    for (int32_t i = node->leaf_begin; i < node->leaf_end; i++)
        if (!leaf_passes(st, &st->check->leaves[i], obj)) return 0;
    return 1;
}

/* Fields of functions that CPython exposes through getset functions rather than member descriptors. */
static const struct {
    const char *name;
    Py_ssize_t offset;
} FUNCTION_FIELDS[] = {
    {"__code__", offsetof(PyFunctionObject, func_code)},
    {"__defaults__", offsetof(PyFunctionObject, func_defaults)},
    {"__kwdefaults__", offsetof(PyFunctionObject, func_kwdefaults)},
    {"__name__", offsetof(PyFunctionObject, func_name)},
    {"__qualname__", offsetof(PyFunctionObject, func_qualname)},
};

/* Finds the plain object field behind node->key on `type`, keeping the answer in the node. */
static void find_field(Node *node, PyTypeObject *type) {
    if (node->field_type == type && node->field_version != 0 && node->field_version == type->tp_version_tag) return;
    node->field = -1;
    node->field_none = 0;
    PyObject *descr = _PyType_Lookup(type, node->key); /* also gives the type a version */
    node->field_type = type;
    node->field_version = type->tp_version_tag;
    if (descr == NULL) return;
    if (type == &PyFunction_Type) {
        for (size_t i = 0; i < Py_ARRAY_LENGTH(FUNCTION_FIELDS); i++)
            if (PyUnicode_CompareWithASCIIString(node->key, FUNCTION_FIELDS[i].name) == 0) {
                node->field = FUNCTION_FIELDS[i].offset;
                node->field_none = 1;
                return;
            }
    }
    if (!Py_IS_TYPE(descr, &PyMemberDescr_Type) || !PyType_IsSubtype(type, PyDescr_TYPE(descr))) return;
    PyMemberDef *member = ((PyMemberDescrObject *)descr)->d_member;
#if PY_VERSION_HEX >= 0x030C0000
    if (member->flags & Py_RELATIVE_OFFSET) return;
#endif
    if (member->type != FIELD_OBJECT && member->type != FIELD_OBJECT_OR_NONE) return;
    node->field = member->offset;
    node->field_none = member->type == FIELD_OBJECT_OR_NONE;
}

static PyObject *load_attribute(State *st, Node *node, PyObject *obj) {
    PyTypeObject *type = Py_TYPE(obj);
    find_field(node, type);
    if (node->field >= 0) {
        PyObject *value = *(PyObject **)((char *)obj + node->field);
        if (value == NULL) return node->field_none ? Py_NewRef(Py_None) : NULL;
        return Py_NewRef(value);
    }
    st->impure = 1;
    if (node->kind == N_SLOT) {
        PyObject *descr = _PyType_Lookup(type, node->key);
        if (descr == NULL || !(Py_IS_TYPE(descr, &PyMemberDescr_Type) || Py_IS_TYPE(descr, &PyGetSetDescr_Type)))
            return NULL;
        Py_INCREF(descr);
        PyObject *value = Py_TYPE(descr)->tp_descr_get(descr, obj, (PyObject *)type);
        Py_DECREF(descr);
        return value == NULL ? failed() : value;
    }
    PyObject *value = PyObject_GetAttr(obj, node->key);
    return value == NULL ? failed() : value;
}

static PyObject *grad_descriptor; /* torch._C.TensorBase.grad */

static PyObject *load_grad(State *st, PyObject *obj) {
    st->impure = 1;
    if (grad_descriptor == NULL || !PyObject_TypeCheck(obj, PyDescr_TYPE(grad_descriptor))) return NULL;
    PyObject *value = Py_TYPE(grad_descriptor)->tp_descr_get(grad_descriptor, obj, (PyObject *)Py_TYPE(obj));
    return value == NULL ? failed() : value;
}

/* New reference. Makes the dict if the instance has none yet, as reading __dict__ does. */
static PyObject *instance_dict(PyObject *obj) {
    PyObject **place = _PyObject_GetDictPtr(obj);
    if (place == NULL) return failed();
    PyObject *dict = *place != NULL ? Py_NewRef(*place) : PyObject_GenericGetDict(obj, NULL);
    if (dict == NULL) return failed();
    if (!PyDict_Check(dict)) Py_CLEAR(dict);
    return dict;
}

static PyObject *tensor_size(State *st, PyObject *obj, Py_ssize_t i) {
    if (layout.ready && PyObject_TypeCheck(obj, layout.base)) {
        const void *impl = tensor_impl(obj);
        if (impl == NULL || (AT(impl, layout.keys, uint64_t) & ~layout.plain_keys) != 0) return NULL;
        uint64_t rank = AT(impl, layout.rank, uint64_t);
        return (uint64_t)i < rank ? PyLong_FromLongLong(impl_sizes(impl, rank)[i]) : NULL;
    }
    st->impure = 1;
    PyObject *value = PyObject_CallMethod(obj, "size", "n", i);
    return value == NULL ? failed() : value;
}

static PyObject *sequence_item(PyObject *obj, Py_ssize_t i) {
    if (!PyList_Check(obj) && !PyTuple_Check(obj)) return NULL;
    Py_ssize_t n = Py_SIZE(obj);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return NULL;
    return PyList_Check(obj) ? PyList_GET_ITEM(obj, i) : PyTuple_GET_ITEM(obj, i);
}

/* The same, owned, of a deque too, which nothing but a call can read. */
static PyObject *sequence_or_deque_item(PyObject *obj, Py_ssize_t i) {
    if (Py_TYPE(obj) != deque_type) return Py_XNewRef(sequence_item(obj, i));
    PyObject *item = PySequence_GetItem(obj, i);
    if (item == NULL) PyErr_Clear();
    return item;
}

static PyObject *closure_cell(PyObject *obj, Py_ssize_t i) {
    if (!PyFunction_Check(obj)) return NULL;
    PyObject *closure = PyFunction_GET_CLOSURE(obj);
    if (closure == NULL || i >= PyTuple_GET_SIZE(closure)) return NULL;
    return PyTuple_GET_ITEM(closure, i);
}

static inline PyObject *node_key(const Check *check, const Node *node) {
    return node->ref >= 0 ? held(check, node->ref) : node->key;
}

/* What a weak reference or proxy refers to, owned; NULL where it has ended. */
static PyObject *weak_target(PyObject *obj) {
    if (!PyWeakref_Check(obj)) return NULL;
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *target;
    PyWeakref_GetRef(obj, &target);
    return target;
#else
    PyObject *target = PyWeakref_GET_OBJECT(obj);
    return target == Py_None ? NULL : Py_NewRef(target);
#endif
}

/* A child's value, owned, or NULL. */
static PyObject *load(State *st, Node *node, PyObject *obj) {
    switch (node->kind) {
    case N_CONST:
        return st->check->live->dead ? NULL : Py_NewRef(held(st->check, node->ref));
    case N_INSTANCE_DICT:
        return instance_dict(obj);
    case N_DICT_ITEM:
        return PyDict_Check(obj) ? dict_lookup(st, obj, node_key(st->check, node)) : NULL;
    case N_SEQ_ITEM:
        return sequence_or_deque_item(obj, node->index);
    case N_DICT_KEY: {
        if (!PyDict_Check(obj)) return NULL;
        KeyAt at = {node->index, NULL};
        visit_keys(st, obj, take_key, &at);
        return at.found;
    }
    case N_TYPE_OF:
        return Py_NewRef((PyObject *)Py_TYPE(obj));
    case N_SLOT:
    case N_ATTR:
        return load_attribute(st, node, obj);
    case N_CLOSURE_CELL:
        return Py_XNewRef(closure_cell(obj, node->index));
    case N_CELL_CONTENTS:
        return PyCell_Check(obj) ? Py_XNewRef(PyCell_GET(obj)) : NULL;
    case N_TENSOR_GRAD:
        return load_grad(st, obj);
    case N_TENSOR_SIZE:
        return tensor_size(st, obj, node->index);
    case N_WEAK_TARGET:
        return weak_target(obj);
    default:
        return NULL;
    }
}

static void fill_slot(State *st, const Node *node, PyObject *obj) {
    if (node->slot >= 0) Py_XSETREF(st->slots[node->slot], Py_NewRef(obj));
}

/* `obj` is owned by the caller. */
static int walk(State *st, int32_t n, PyObject *obj) {
    Node *node = &st->check->nodes[n];
    if (!leaves_pass(st, node, obj)) return 0;
    fill_slot(st, node, obj);
    for (int32_t c = node->first_child; c >= 0; c = st->check->nodes[c].next_sibling) {
        PyObject *value = load(st, &st->check->nodes[c], obj);
        if (value == NULL) return 0;
        int ok = walk(st, c, value);
        Py_DECREF(value);
        if (!ok) return 0;
    }
    return 1;
}

#endif
