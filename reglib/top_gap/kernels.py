"""Triton kernels: one program for each class map, which it holds in registers.

Values are selected by bisection over their bits, read as integers of the same order. There are 2^32
integers, so bisection ends after 32 steps for any values.
"""

import triton
import triton.language as tl


@triton.jit
def _load_row(maps, index, classes, locations, by_image, by_class, by_location):
    row = tl.program_id(0)
    first = (row // classes).to(tl.int64) * by_image + (row % classes).to(tl.int64) * by_class
    pointers = maps + first + index * by_location
    x = tl.load(pointers, mask=index < locations, other=0.0).to(tl.float32)
    return tl.where(x == 0, 0.0, x)  # -0.0 equals 0.0


@triton.jit
def pool(
    maps, means, sizes, smallest, last, classes, locations, k, by_image, by_class, by_location,
    block: tl.constexpr,
):  # fmt: skip
    """Write the mean of the k largest values, and the mean absolute value, of a map.

    The k largest are the values above `smallest`, and those equal to it up to the location `last`.
    """
    index = tl.arange(0, block)
    inside = index < locations
    x = _load_row(maps, index, classes, locations, by_image, by_class, by_location)
    bits = tl.where(x == x, x.to(tl.int32, bitcast=True), 0x7FC00000)  # NaN is the largest
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    low = tl.min(tl.where(inside, keys, 0x7FFFFFFF))
    keys = tl.where(inside, keys, -0x80000000)  # no float has this key
    high = tl.max(keys)
    count = tl.sum(inside.to(tl.int32))
    while (low < high) & (count != k):  # at least k keys reach low, and the kth is up to high
        middle = (low | high) - ((low ^ high) >> 1)
        reached = tl.sum((keys >= middle).to(tl.int32))
        low = tl.where(reached >= k, middle, low)
        count = tl.where(reached >= k, reached, count)
        high = tl.where(reached >= k, high, middle - 1)
    kth = tl.min(tl.where(keys >= low, keys, 0x7FFFFFFF))
    above, equal = keys > kth, keys == kth
    taken = k - tl.sum(above.to(tl.int32))
    end = tl.max(tl.where(equal, index, -1))
    if tl.sum(equal.to(tl.int32)) > taken:
        first = equal & (tl.cumsum(equal.to(tl.int32)) <= taken)
        end = tl.max(tl.where(first, index, -1))
    value = (kth ^ ((kth >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    row = tl.program_id(0)
    tl.store(means + row, (tl.sum(tl.where(above, x, 0.0)) + taken * value) / k)
    tl.store(sizes + row, tl.sum(tl.abs(x)) / locations)
    tl.store(smallest + row, value)
    tl.store(last + row, end)


@triton.jit
def spread(
    maps, gradient, grad_means, grad_sizes, smallest, last, classes, locations, k,
    by_image, by_class, by_location, to_image, to_class, to_location, block: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a map, from the gradients of its two means."""
    row = tl.program_id(0)
    index = tl.arange(0, block)
    x = _load_row(maps, index, classes, locations, by_image, by_class, by_location)
    value, end = tl.load(smallest + row), tl.load(last + row)
    grad_mean = tl.load(grad_means + row).to(tl.float32) / k
    grad_size = tl.load(grad_sizes + row).to(tl.float32) / locations
    chosen = (x > value) | ((x == value) & (index <= end))
    sign = (x > 0).to(tl.float32) - (x < 0).to(tl.float32)
    result = tl.where(chosen, grad_mean, 0.0) + grad_size * sign
    first = (row // classes).to(tl.int64) * to_image + (row % classes).to(tl.int64) * to_class
    tl.store(gradient + first + index * to_location, result, mask=index < locations)
