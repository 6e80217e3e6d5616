/* Comparison of constants: exact type and value, without running any user code.
 *
 * In: an expected constant (built by the guard compiler) and a found value of any type. Out: 1 equal, 0 not.
 * Always: no exception is left behind; a found value whose comparison could run user code is unequal.
 */
#ifndef GRAPHLIFT_CONSTANTS_H
#define GRAPHLIFT_CONSTANTS_H

#include <Python.h>
#include <string.h>

/* Types outside CPython's own that compare in C (torch.device) or element by element (torch.Size). */
static PyTypeObject *value_types[8];
static int n_value_types = 0;
static PyTypeObject *tuple_types[4];
static int n_tuple_types = 0;

static int is_value_type(PyTypeObject *type) {
    for (int i = 0; i < n_value_types; i++)
        if (value_types[i] == type) return 1;
    return 0;
}

static int is_tuple_type(PyTypeObject *type) {
    if (type == &PyTuple_Type) return 1;
    for (int i = 0; i < n_tuple_types; i++)
        if (tuple_types[i] == type) return 1;
    return 0;
}

static int true_and_clear(int result) {
    if (result < 0) {
        PyErr_Clear();
        return 0;
    }
    return result;
}

#if PY_VERSION_HEX >= 0x030D0000
/* Exported, but declared only in CPython's internal headers since 3.13. */
PyAPI_FUNC(int) _PySet_NextEntry(PyObject *set, Py_ssize_t *pos, PyObject **key, Py_hash_t *hash);
#endif

static int const_equal(PyObject *want, PyObject *got);

/* Sets of constants: O(n*n), since membership by hash would take 1 for True (and could run user code). */
static int frozenset_equal(PyObject *want, PyObject *got) {
    if (PySet_GET_SIZE(want) != PySet_GET_SIZE(got)) return 0;
    PyObject *item, *other;
    Py_ssize_t i = 0;
    Py_hash_t hash;
    while (_PySet_NextEntry(want, &i, &item, &hash)) {
        Py_ssize_t j = 0;
        int found = 0;
        Py_hash_t other_hash;
        while (!found && _PySet_NextEntry(got, &j, &other, &other_hash))
            found = hash == other_hash && const_equal(item, other);
        if (!found) return 0;
    }
    return 1;
}

static int fields_equal(PyObject *want, PyObject *got) {
    static const char *const names[] = {"start", "stop", "step"};
    for (int i = 0; i < 3; i++) {
        /* Member descriptors of slice and range: plain reads. */
        PyObject *a = PyObject_GetAttrString(want, names[i]);
        PyObject *b = PyObject_GetAttrString(got, names[i]);
        int same = a != NULL && b != NULL && const_equal(a, b);
        Py_XDECREF(a);
        Py_XDECREF(b);
        if (!same) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

static int const_equal(PyObject *want, PyObject *got) {
    if (want == got) return 1;
    PyTypeObject *type = Py_TYPE(want);
    if (type != Py_TYPE(got)) return 0;
    if (type == &PyLong_Type) return true_and_clear(PyObject_RichCompareBool(want, got, Py_EQ));
    if (type == &PyUnicode_Type) {
        if (PyUnicode_GET_LENGTH(want) != PyUnicode_GET_LENGTH(got)) return 0;
        return true_and_clear(PyObject_RichCompareBool(want, got, Py_EQ));
    }
    if (type == &PyFloat_Type) {
        double a = PyFloat_AS_DOUBLE(want), b = PyFloat_AS_DOUBLE(got);
        return memcmp(&a, &b, sizeof a) == 0;
    }
    if (type == &PyComplex_Type) {
        Py_complex a = PyComplex_AsCComplex(want), b = PyComplex_AsCComplex(got);
        return memcmp(&a.real, &b.real, sizeof(double)) == 0 && memcmp(&a.imag, &b.imag, sizeof(double)) == 0;
    }
    if (type == &PyBytes_Type) {
        Py_ssize_t n = PyBytes_GET_SIZE(want);
        return n == PyBytes_GET_SIZE(got) && memcmp(PyBytes_AS_STRING(want), PyBytes_AS_STRING(got), n) == 0;
    }
    if (is_tuple_type(type)) {
        Py_ssize_t n = PyTuple_GET_SIZE(want);
        if (n != PyTuple_GET_SIZE(got)) return 0;
        for (Py_ssize_t i = 0; i < n; i++)
            if (!const_equal(PyTuple_GET_ITEM(want, i), PyTuple_GET_ITEM(got, i))) return 0;
        return 1;
    }
    if (type == &PyFrozenSet_Type) return frozenset_equal(want, got);
    if (type == &PySlice_Type || type == &PyRange_Type) return fields_equal(want, got);
    if (is_value_type(type)) return true_and_clear(PyObject_RichCompareBool(want, got, Py_EQ));
    return 0; /* None, bool, Ellipsis and torch's singletons: identity, tested above */
}

#endif
