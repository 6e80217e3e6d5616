"""Builtins written in Python, traced in place of their C versions when they meet values that are not constants.

In: nothing. Out: plain functions with the builtins' meaning.
Always: nothing here imports or calls anything but other builtins.
"""
# ruff: noqa: SIM110, B007

_MISSING = object()


def any_(iterable):
    for item in iterable:
        if item:
            return True
    return False


def all_(iterable):
    for item in iterable:
        if not item:
            return False
    return True


def sum_(iterable, /, start=0):
    total = start
    for item in iterable:
        total = total + item
    return total


def min_of(items, key, default, missing):
    found = missing
    for item in items:
        rank = item if key is None else key(item)
        if found is missing or rank < best:  # noqa: F821
            found, best = item, rank
    if found is missing:
        if default is missing:
            raise ValueError("min() arg is an empty sequence")
        return default
    return found


def max_of(items, key, default, missing):
    found = missing
    for item in items:
        rank = item if key is None else key(item)
        if found is missing or rank > best:  # noqa: F821
            found, best = item, rank
    if found is missing:
        if default is missing:
            raise ValueError("max() arg is an empty sequence")
        return default
    return found


def reduce_(function, iterable, *initial):
    iterator = iter(iterable)
    if initial:
        value = initial[0]
    else:
        try:
            value = next(iterator)
        except StopIteration:
            raise TypeError("reduce() of empty iterable with no initial value") from None
    for item in iterator:
        value = function(value, item)
    return value


def iterate_by_index(obj):
    index = 0
    while True:
        try:
            item = obj[index]
        except IndexError:
            return
        yield item
        index += 1


def reversed_by_index(obj):
    for index in range(len(obj) - 1, -1, -1):
        yield obj[index]


def chain_(*iterables):
    for iterable in iterables:
        for item in iterable:
            yield item


def chain_from_iterable(iterables):
    for iterable in iterables:
        for item in iterable:
            yield item


def product_(*iterables, repeat=1):
    pools = [tuple(pool) for pool in iterables] * repeat
    result = [()]
    for pool in pools:
        result = [(*head, item) for head in result for item in pool]
    return iter(result)


def islice_(iterable, *limits):
    bounds = slice(*limits)
    start, stop, step = bounds.start or 0, bounds.stop, 1 if bounds.step is None else bounds.step
    index = 0
    wanted = start
    if stop is not None and wanted >= stop:
        return
    for item in iterable:
        if index == wanted:
            yield item
            wanted += step
            if stop is not None and wanted >= stop:
                return
        index += 1


def accumulate_(iterable, func=None, *, initial=None):
    iterator = iter(iterable)
    total = initial
    if initial is None:
        try:
            total = next(iterator)
        except StopIteration:
            return
    yield total
    for item in iterator:
        total = total + item if func is None else func(total, item)
        yield total


def repeat_(item, times):
    for _ in range(times):
        yield item


def zip_longest_(*iterables, fillvalue=None):
    columns = [list(iterable) for iterable in iterables]
    width = 0
    for column in columns:
        if len(column) > width:
            width = len(column)
    for index in range(width):
        yield tuple(column[index] if index < len(column) else fillvalue for column in columns)


def starmap_(function, iterable):
    for arguments in iterable:
        yield function(*arguments)


def pairwise_(iterable):
    iterator = iter(iterable)
    try:
        left = next(iterator)
    except StopIteration:
        return
    for right in iterator:
        yield left, right
        left = right
