/* Relations between sizes: small integer programs over sizes and int arguments that the check has loaded.
 *
 * In: a relation's program (postfix, made by compile.py) and the slots that hold its values. Out: 1 holds, 0 not.
 * Always: exact; a value beyond 64 bits, an overflow or a division by zero makes the relation fail.
 */
#ifndef GRAPHLIFT_SIZES_H
#define GRAPHLIFT_SIZES_H

#include "program.h"

/* Must equal _SIZE_OPS in compile.py. */
enum { S_VALUE, S_CONST, S_ADD, S_MUL, S_FLOORDIV, S_MIN, S_MAX, S_EQ, S_NE, S_LT, S_LE };

#define SIZE_STACK 32

static int size_value(PyObject *obj, int64_t *out) {
    if (obj == NULL || !PyLong_CheckExact(obj)) return 0;
    int overflow = 0;
    *out = PyLong_AsLongLongAndOverflow(obj, &overflow);
    return !overflow;
}

static int floor_divide(int64_t a, int64_t b, int64_t *out) {
    if (b == 0 || (a == INT64_MIN && b == -1)) return 0;
    int64_t q = a / b;
    *out = q - ((a % b != 0) && ((a < 0) != (b < 0)));
    return 1;
}

static int sizes_relate(State *st, const Relation *rel) {
    int64_t stack[SIZE_STACK];
    int top = 0; /* the program was checked to stay within the stack when it was built */
    for (int32_t i = 0; i < rel->n_program; i += 2) {
        int64_t op = rel->program[i], operand = rel->program[i + 1];
        if (op == S_VALUE) {
            if (!size_value(st->slots[rel->slots[operand]], &stack[top++])) return 0;
            continue;
        }
        if (op == S_CONST) {
            stack[top++] = operand;
            continue;
        }
        int64_t b = stack[--top], a = stack[top - 1], *out = &stack[top - 1];
        switch (op) {
        case S_ADD:
            if (__builtin_add_overflow(a, b, out)) return 0;
            break;
        case S_MUL:
            if (__builtin_mul_overflow(a, b, out)) return 0;
            break;
        case S_FLOORDIV:
            if (!floor_divide(a, b, out)) return 0;
            break;
        case S_MIN:
            *out = a < b ? a : b;
            break;
        case S_MAX:
            *out = a > b ? a : b;
            break;
        case S_EQ:
            *out = a == b;
            break;
        case S_NE:
            *out = a != b;
            break;
        case S_LT:
            *out = a < b;
            break;
        default:
            *out = a <= b;
        }
    }
    return top == 1 && stack[0] == 1;
}

/* The program of a relation from a tuple of ints; 0 and an exception where it would not run within its stack. */
static int build_size_program(Relation *rel, PyObject *code) {
    if (!PyTuple_Check(code) || PyTuple_GET_SIZE(code) % 2 != 0) {
        PyErr_SetString(PyExc_ValueError, "guard program: a relation of sizes takes pairs of ints");
        return 0;
    }
    rel->n_program = (int32_t)PyTuple_GET_SIZE(code);
    rel->program = PyMem_Malloc((size_t)(rel->n_program ? rel->n_program : 1) * sizeof *rel->program);
    if (rel->program == NULL) return PyErr_NoMemory() != NULL;
    int depth = 0;
    for (int32_t i = 0; i < rel->n_program; i++) {
        int64_t word = rel->program[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(code, i));
        if (PyErr_Occurred()) return 0;
        if (i % 2 == 1) continue;
        int64_t operand = i + 1 < rel->n_program ? PyLong_AsLongLong(PyTuple_GET_ITEM(code, i + 1)) : 0;
        if (PyErr_Occurred()) return 0;
        int known = word >= S_VALUE && word <= S_LE && (word != S_VALUE || (operand >= 0 && operand < rel->n));
        depth += word <= S_CONST ? 1 : -1;
        if (!known || depth < 1 || depth > SIZE_STACK) {
            PyErr_SetString(PyExc_ValueError, "guard program: bad relation of sizes");
            return 0;
        }
    }
    return 1;
}

#endif
