# Hints from Python: buffers of all kinds, right and wrong. Prints the same wherever it runs.
import array
import mmap

from farmem import hints

PAGE = 4096
area = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(len(area) // PAGE):
    area[page * PAGE] = page * 7 % 251
view = memoryview(area)
hints.pattern(area, "random")
total = 0
for step in range(300):
    at = step * 2654435761 % (len(area) // PAGE - 8) * PAGE
    part = view[at : at + 8 * PAGE]
    (hints.write if step % 2 else hints.read)(part)
    total += sum(part[::PAGE])
    part[5] = step % 256
    (hints.pageout if step % 3 else hints.cold)(part)
    part.release()
print(total, sum(view[5::PAGE]))
hints.pattern(area, "sequential")
print(sum(view[::PAGE]))
for odd in (b"", b"abc", bytearray(10), bytes(1 << 20), array.array("d", [1.0] * 100000), memoryview(b"x" * 70000)):
    for hint in (hints.read, hints.write, hints.cold, hints.pageout):
        hint(odd)
for wrong in (lambda: hints.read(5), lambda: hints.pattern(area, "sideways")):
    try:
        wrong()
    except (TypeError, ValueError) as e:
        print(type(e).__name__, e)
