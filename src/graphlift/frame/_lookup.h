/* From a function and its arguments to an entry and its result; asking the handler where there is none; ending
 * a frame that was not run. Part of _frame.c.
 */
#pragma once

/* call[0] is scratch, call[1] the function, then `nargs` arguments, then room for the fetched values. */
enum { SMALL_CALL = 32 };

/* 1 and a new reference to the entry and the fetched values when an entry's check passes; 0; -1 on an error. */
static int
find_entry(CodeState *state, Compiled *owner, PyObject **call, Py_ssize_t nargs, Entry **hit, PyObject **fetched)
{
    int result = 0;
    Compiled *saved = active_owner;
    active_owner = NULL;
    for (Py_ssize_t i = 0; i < state->entries.count; i++) {
        Entry *entry = state->entries.items[i];
        if (entry->owner != owner || entry->check == NULL) {
            continue;
        }
        Py_INCREF(entry);
        uint64_t version = state->version;
        PyObject *values =
            PyObject_Vectorcall(entry->check, call + 1, (nargs + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        if (values != NULL && values != Py_None) {
            if (i > 0 && state->version == version) {
                memmove(state->entries.items + 1, state->entries.items, i * sizeof(Entry *));
                state->entries.items[0] = entry;
                state->version++;
            }
            *hit = entry;
            *fetched = values;
            result = 1;
            break;
        }
        Py_DECREF(entry);
        if (values == NULL) {
            result = -1;
            break;
        }
        Py_DECREF(values);
        if (state->version != version) {
            break;  /* the check changed the list under us: count this call as a miss */
        }
    }
    active_owner = saved;
    return result;
}

/* A replacement of graphlift's own making does not show in tracebacks, unless it is itself what failed. */
static void
hide_replacement(PyObject *replacement)
{
    if (!PyFunction_Check(replacement)) {
        return;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(replacement);
    PyObject *start = code->co_filename;
    if (!PyUnicode_Check(start) || PyUnicode_GET_LENGTH(start) < 10 || PyUnicode_KIND(start) != PyUnicode_1BYTE_KIND
        || memcmp(PyUnicode_1BYTE_DATA(start), "<graphlift", 10) != 0) {
        return;
    }
#if PY_VERSION_HEX < 0x030C0000
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
#else
    PyObject *value = PyErr_GetRaisedException();
    PyObject *tb = value ? PyException_GetTraceback(value) : NULL;
#endif
    if (tb != NULL && PyTraceBack_Check(tb)) {
        PyTracebackObject *first = (PyTracebackObject *)tb;
        PyCodeObject *top = PyFrame_GetCode(first->tb_frame);
        PyObject *next = (PyObject *)first->tb_next;
        if (top == code && next != NULL) {
#if PY_VERSION_HEX < 0x030C0000
            Py_SETREF(tb, Py_NewRef(next));
#else
            PyException_SetTraceback(value, next);
#endif
        }
        Py_DECREF(top);
    }
#if PY_VERSION_HEX < 0x030C0000
    PyErr_Restore(type, value, tb);
#else
    Py_XDECREF(tb);
    PyErr_SetRaisedException(value);
#endif
}

static inline void
release_pending(void)
{
    Pending mine = pending;
    pending.func = NULL;
    for (Py_ssize_t i = 0; i < mine.count; i++) {
        Py_CLEAR(mine.slots[i]);
    }
    if (mine.one != NULL) {
        Py_CLEAR(*mine.one);
    }
}

/* Runs the replacement. `owned`: slots whose references the replacement's frame takes over, NULL for none.
 * Steals the references to the entry and the fetched values. Outside a trampoline a Handover is run at once. */
static PyObject *
run_entry(Entry *entry, PyObject **call, Py_ssize_t nargs, PyObject *fetched, PyObject **owned, bool trampolined)
{
    PyObject *replacement = Py_NewRef(entry->replacement);
    Compiled *saved = active_owner;
    Pending outer = pending;
    call[nargs + 2] = fetched;
    if (entry->hook) {
        pending = (Pending){replacement, owned, owned != NULL ? nargs : 0, &fetched, false};
    }
    else {
        active_owner = NULL;
    }
    Py_DECREF(entry);
    PyObject *result =
        PyObject_Vectorcall(replacement, call + 1, (nargs + 2) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    pending = outer;
    if (result == NULL) {
        hide_replacement(replacement);
    }
    Py_XDECREF(fetched);
    Py_DECREF(replacement);
    active_owner = saved;
    if (!trampolined && result != NULL && Py_IS_TYPE(result, &Handover_Type)) {
        result = run_handovers(result);
    }
    return result;
}

/* Ends a frame that was not run. Until 3.11 the caller clears it; from 3.12 on the evaluator does, so it is
 * given code that only returns. Takes and returns the result (NULL: an exception is set). */
static PyObject *
dispose(PyThreadState *tstate, _PyInterpreterFrame *frame, PyObject *result)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *error = result == NULL ? PyErr_GetRaisedException() : NULL;
    PyCodeObject *old = FRAME_CODE(frame);
#if PY_VERSION_HEX < 0x030D0000
    frame->f_code = (PyCodeObject *)Py_NewRef(exit_code);
    frame->prev_instr = _PyCode_CODE(exit_code);       /* its RESUME: the return comes next */
#else
    frame->f_executable = Py_NewRef(exit_code);
    frame->instr_ptr = _PyCode_CODE(exit_code) + 1;
#endif
    Py_DECREF(old);
    PyObject *none = _PyEval_EvalFrameDefault(tstate, frame, 0);
    if (none == NULL) {
        Py_XDECREF(error);
        Py_XDECREF(result);
        return NULL;
    }
    Py_DECREF(none);
    if (error != NULL) {
        PyErr_SetRaisedException(error);
    }
#endif
    return result;
}

static Py_ssize_t
count_entries(CodeState *state, Compiled *owner, bool *frozen)
{
    Py_ssize_t count = 0;
    *frozen = false;
    for (Py_ssize_t i = 0; state != NULL && i < state->entries.count; i++) {
        Entry *entry = state->entries.items[i];
        if (entry->owner == owner) {
            *frozen |= entry->check == NULL;
            count += entry->check != NULL;
        }
    }
    return count;
}

enum { ASK_ERROR = -1, ASK_EAGER = 0, ASK_RUN = 1 };

/* Asks the owner's handler about a function that no entry serves, and installs what it answers. */
static int
ask_handler(Compiled *owner, PyCodeObject *code, PyObject **call, Py_ssize_t nargs, Entry **hit, PyObject **fetched)
{
    bool frozen;
    Py_ssize_t recompiles = count_entries(get_state(code), owner, &frozen);
    if (frozen) {
        return ASK_EAGER;
    }
    int outcome = ASK_ERROR;
    Compiled *saved = active_owner, *asking = asking_owner;
    active_owner = NULL;
    asking_owner = owner;
    PyObject *answer = NULL, *number = PyLong_FromSsize_t(recompiles), *args = PyTuple_New(nargs);
    if (number == NULL || args == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(call[i + 2]));
    }
    PyObject *question[] = {call[1], args, number};
    answer = PyObject_Vectorcall(owner->handler, question, 3, NULL);
    if (answer == NULL) {
        goto done;
    }
    if (answer == Py_None) {
        outcome = ASK_EAGER;
    }
    else if (answer == skip_verdict) {
        CodeState *state = make_state(code);
        if (state != NULL) {
            state->skip = true;
            outcome = ASK_EAGER;
        }
    }
    else if (answer == frozen_verdict) {
        outcome = attach(code, owner, NULL, NULL, false) == NULL ? ASK_ERROR : ASK_EAGER;
    }
    else if (PyTuple_Check(answer) && (PyTuple_GET_SIZE(answer) == 2 || PyTuple_GET_SIZE(answer) == 3)) {
        PyObject *check = PyTuple_GET_ITEM(answer, 0), *replacement = PyTuple_GET_ITEM(answer, 1);
        int with_hook = PyTuple_GET_SIZE(answer) == 3 ? PyObject_IsTrue(PyTuple_GET_ITEM(answer, 2)) : 1;
        if (with_hook < 0) {
            goto done;
        }
        if (PyFunction_Check(replacement)) {
            CodeState *own = make_state((PyCodeObject *)PyFunction_GET_CODE(replacement));
            if (own == NULL) {
                goto done;
            }
            own->skip = true;
        }
        Entry *entry = attach(code, owner, check, replacement, with_hook);
        if (entry == NULL) {
            goto done;
        }
        Py_INCREF(entry);
        PyObject *values =
            PyObject_Vectorcall(check, call + 1, (nargs + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        if (values == NULL || values == Py_None) {
            outcome = values == NULL ? ASK_ERROR : ASK_EAGER;
            Py_XDECREF(values);
            Py_DECREF(entry);
        }
        else {
            *hit = entry;
            *fetched = values;
            outcome = ASK_RUN;
        }
    }
    else {
        PyErr_Format(PyExc_TypeError, "handler returned %R, expected (check, replacement), SKIP, FROZEN or None",
                     answer);
    }
done:
    active_owner = saved;
    asking_owner = asking;
    Py_XDECREF(answer);
    Py_XDECREF(args);
    Py_XDECREF(number);
    return outcome;
}
