/* Conditions that calls of C functions decide, on values that the check has loaded: no Python runs.
 *
 * In: a relation's program (made by compile.py), its constants, and the slots that hold its values. Out: 1 holds, 0 not.
 * Always: each call's arguments are values, constants, or what earlier calls gave; an exception makes the relation fail.
 */
#ifndef GRAPHLIFT_CALLS_H
#define GRAPHLIFT_CALLS_H

#include "program.h"

/* The program: for each call the place of its function, the number of its arguments, and their places. Places count the
 * relation's slots, then the constants (the first is what the last call must give), then the results. */
#define CALL_ARGS 8
#define FEW_PLACES 64

static int calls_give(State *st, const Relation *rel) {
    PyObject *constants = Py_NewRef(rel->fn), *few[FEW_PLACES], **at = few, *args[CALL_ARGS];
    Py_ssize_t n_constants = PyTuple_GET_SIZE(constants), given = rel->n + n_constants, n = given;
    int32_t n_program = rel->n_program, ok = 1;
    if (given + n_program / 2 > FEW_PLACES) at = PyMem_Malloc((size_t)(given + n_program / 2) * sizeof *at);
    if (at == NULL) return Py_DECREF(constants), 0;
    st->impure = 1;
    for (int32_t i = 0; i < rel->n; i++) at[i] = st->slots[rel->slots[i]];
    for (Py_ssize_t i = 0; i < n_constants; i++) at[rel->n + i] = PyTuple_GET_ITEM(constants, i);
    for (int32_t i = 0; i < n_program && ok;) {
        PyObject *fn = at[rel->program[i]];
        int64_t count = rel->program[i + 1];
        for (int64_t k = 0; k < count; k++) args[k] = at[rel->program[i + 2 + k]];
        at[n] = PyObject_Vectorcall(fn, args, (size_t)count, NULL);
        ok = at[n] != NULL;
        n += ok;
        i += 2 + (int32_t)count;
    }
    if (!ok) PyErr_Clear();
    ok = ok && n > given && at[n - 1] == at[rel->n];
    while (n > given) Py_DECREF(at[--n]);
    if (at != few) PyMem_Free(at);
    Py_DECREF(constants);
    return ok;
}

/* The program from (calls' words, constants); 0 and an exception where it refers to what is not there. */
static int build_calls(Relation *rel, PyObject *given) {
    PyObject *code, *constants;
    if (!PyArg_ParseTuple(given, "O!O!", &PyTuple_Type, &code, &PyTuple_Type, &constants)) return 0;
    int32_t n = (int32_t)PyTuple_GET_SIZE(code);
    rel->program = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *rel->program);
    if (rel->program == NULL) return PyErr_NoMemory() != NULL;
    for (int32_t i = 0; i < n; i++) rel->program[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(code, i));
    if (PyErr_Occurred()) return 0;
    rel->n_program = n;
    Py_SETREF(rel->fn, Py_NewRef(constants));
    int64_t places = rel->n + PyTuple_GET_SIZE(constants);
    int ok = n > 0 && PyTuple_GET_SIZE(constants) > 0;
    for (int32_t i = 0; i < n && ok; places++) {
        int64_t count = i + 1 < n ? rel->program[i + 1] : -1;
        ok = count >= 0 && count <= CALL_ARGS && i + 2 + count <= n && rel->program[i] >= 0 && rel->program[i] < places;
        for (int64_t k = 0; k < count && ok; k++)
            ok = rel->program[i + 2 + k] >= 0 && rel->program[i + 2 + k] < places;
        i += 2 + (int32_t)count;
    }
    if (!ok) PyErr_SetString(PyExc_ValueError, "guard program: bad calls");
    return ok;
}

#endif
