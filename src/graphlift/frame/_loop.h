/* LoopIter: the iterator of a loop that a break left, in a frame's stack where no program can see which it is.
 * Part of _frame.c.
 *
 * It gives what the builtin iterator would give. Besides, `upcoming0`, `upcoming1`, ... are the items that it will
 * give, and `ended0`, ... whether there are as few, so that a check can look at them and leave it as it is.
 */
#pragma once

enum { LOOP_ITEMS, LOOP_ENUMERATE, LOOP_ZIP, LOOP_DICT };

static bool
loop_accepts(int kind, PyObject *over, PyObject *iterator)
{
    switch (kind) {
    case LOOP_ITEMS:
        return PyList_CheckExact(over) || PyTuple_CheckExact(over) || PyRange_Check(over) || PyUnicode_CheckExact(over);
    case LOOP_ENUMERATE:
        return Py_IS_TYPE(over, &LoopIter_Type);
    case LOOP_ZIP:
        for (Py_ssize_t i = 0; PyTuple_CheckExact(over) && i < PyTuple_GET_SIZE(over); i++) {
            if (!Py_IS_TYPE(PyTuple_GET_ITEM(over, i), &LoopIter_Type)) {
                return false;
            }
        }
        return PyTuple_CheckExact(over) && PyTuple_GET_SIZE(over) > 0;
    default: {
        PyTypeObject *type = iterator ? Py_TYPE(iterator) : NULL;
        return kind == LOOP_DICT && PyDict_CheckExact(over)
            && (type == &PyDictIterKey_Type || type == &PyDictIterValue_Type || type == &PyDictIterItem_Type);
    }
    }
}

static PyObject *
loop_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"kind", "over", "index", "iterator", NULL};
    int kind;
    PyObject *over, *iterator = NULL;
    Py_ssize_t index = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO|nO:LoopIter", keywords, &kind, &over, &index, &iterator)) {
        return NULL;
    }
    if (!loop_accepts(kind, over, iterator)) {
        PyErr_Format(PyExc_TypeError, "LoopIter: no loop of kind %d over %.100s", kind, Py_TYPE(over)->tp_name);
        return NULL;
    }
    LoopIter *self = PyObject_GC_New(LoopIter, &LoopIter_Type);
    if (self == NULL) {
        return NULL;
    }
    self->kind = kind;
    self->over = Py_NewRef(over);
    self->index = index;
    self->iterator = kind == LOOP_DICT ? Py_NewRef(iterator) : NULL;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *loop_ahead(LoopIter *self, Py_ssize_t ahead);

static PyObject *
numbered(Py_ssize_t number, PyObject *item)
{
    return item == NULL ? NULL : Py_BuildValue("(nN)", number, item);
}

/* One item of each part; `ahead` < 0 steps them. NULL without an exception where a part has none. */
static PyObject *
zipped(PyObject *parts, Py_ssize_t ahead)
{
    Py_ssize_t count = PyTuple_GET_SIZE(parts);
    PyObject *made = PyTuple_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        LoopIter *part = (LoopIter *)PyTuple_GET_ITEM(parts, i);
        PyObject *item = ahead < 0 ? Py_TYPE(part)->tp_iternext((PyObject *)part) : loop_ahead(part, ahead);
        if (item == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyTuple_SET_ITEM(made, i, item);
    }
    return made;
}

/* What a dict's iterator has left, as a list: it copies itself for that. */
static PyObject *
dict_left(PyObject *iterator)
{
    PyObject *reduced = PyObject_CallMethod(iterator, "__reduce__", NULL);
    if (reduced == NULL) {
        return NULL;
    }
    PyObject *list = NULL;
    if (PyTuple_Check(reduced) && PyTuple_GET_SIZE(reduced) == 2
        && PyArg_ParseTuple(PyTuple_GET_ITEM(reduced, 1), "O!", &PyList_Type, &list)) {
        Py_INCREF(list);
    }
    else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_SystemError, "the iterator of a dict reduces to something unknown");
    }
    Py_DECREF(reduced);
    return list;
}

static Py_ssize_t
items_of(PyObject *over)
{
    return PyList_CheckExact(over) || PyTuple_CheckExact(over) ? Py_SIZE(over) : PyObject_Size(over);
}

/* The item after `ahead` others, the iterator staying where it is; NULL with or without an exception: none. */
static PyObject *
loop_ahead(LoopIter *self, Py_ssize_t ahead)
{
    if (self->over == NULL) {
        return NULL;
    }
    switch (self->kind) {
    case LOOP_ITEMS:
        return self->index + ahead < items_of(self->over) ? PySequence_GetItem(self->over, self->index + ahead) : NULL;
    case LOOP_ENUMERATE:
        return numbered(self->index + ahead, loop_ahead((LoopIter *)self->over, ahead));
    case LOOP_ZIP:
        return zipped(self->over, ahead);
    default: {
        PyObject *left = dict_left(self->iterator), *item = NULL;
        if (left != NULL && ahead < PyList_GET_SIZE(left)) {
            item = Py_NewRef(PyList_GET_ITEM(left, ahead));
        }
        Py_XDECREF(left);
        return item;
    }
    }
}

static PyObject *
loop_next(LoopIter *self)
{
    if (self->over == NULL) {
        return NULL;
    }
    PyObject *item;
    switch (self->kind) {
    case LOOP_ENUMERATE:
        item = numbered(self->index, Py_TYPE(self->over)->tp_iternext(self->over));
        break;
    case LOOP_ZIP:
        return zipped(self->over, -1);
    case LOOP_DICT:
        return Py_TYPE(self->iterator)->tp_iternext(self->iterator);
    default:
        item = loop_ahead(self, 0);
        if (item == NULL) {
            Py_CLEAR(self->over);  /* at the end it stays there, whatever is appended */
        }
    }
    if (item != NULL) {
        self->index++;
    }
    return item;
}

static PyObject *
loop_getattro(LoopIter *self, PyObject *name)
{
    const char *text = PyUnicode_AsUTF8(name);
    if (text == NULL) {
        return NULL;
    }
    bool item = strncmp(text, "upcoming", 8) == 0;
    if (!item && strncmp(text, "ended", 5) != 0) {
        return PyObject_GenericGetAttr((PyObject *)self, name);
    }
    PyObject *found = loop_ahead(self, atol(text + (item ? 8 : 5)));
    if (found == NULL && PyErr_Occurred()) {
        return NULL;
    }
    if (item && found == NULL) {
        PyErr_SetObject(PyExc_AttributeError, name);
    }
    if (item) {
        return found;
    }
    Py_XDECREF(found);
    return PyBool_FromLong(found == NULL);
}

static int
loop_traverse(LoopIter *self, visitproc visit, void *arg)
{
    Py_VISIT(self->over);
    Py_VISIT(self->iterator);
    return 0;
}

static int
loop_clear(LoopIter *self)
{
    Py_CLEAR(self->over);
    Py_CLEAR(self->iterator);
    return 0;
}

static void
loop_dealloc(LoopIter *self)
{
    PyObject_GC_UnTrack(self);
    loop_clear(self);
    PyObject_GC_Del(self);
}

static PyMemberDef loop_members[] = {
    {"kind", T_INT, offsetof(LoopIter, kind), READONLY, "0: items, 1: enumerate, 2: zip, 3: dict"},
    {"over", T_OBJECT, offsetof(LoopIter, over), READONLY, "what is iterated over; None at the end"},
    {NULL},
};

static PyTypeObject LoopIter_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "graphlift.frame._frame.LoopIter",
    .tp_doc = PyDoc_STR("LoopIter(kind, over, index=0, iterator=None): the iterator of a loop that a break left."),
    .tp_basicsize = sizeof(LoopIter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = loop_new,
    .tp_getattro = (getattrofunc)loop_getattro,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)loop_next,
    .tp_traverse = (traverseproc)loop_traverse,
    .tp_clear = (inquiry)loop_clear,
    .tp_dealloc = (destructor)loop_dealloc,
    .tp_members = loop_members,
};
