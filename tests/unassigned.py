#!/usr/bin/env python3
"""Lists locals that optimized MIR reads and never assigns: a miscompilation of rustc 1.95 (docs/design/compiler.md).

usage: unassigned.py FILE.mir...      (made by RUSTFLAGS=--emit=mir cargo build --release)

Ends with status 1 if there is one. Locals of uninhabited types are left out: code that reads them is
never reached, and the optimizer removes their assignments rightly.
"""
import re
import sys

ASSIGNED = [
    re.compile(r"(?m)^\s*\(*\*?_(\d+)\b[^=\n]*? = "),  # _1 = …, (_1.0: T) = …
    re.compile(r"(?m)^\s*discriminant\(\(*_(\d+)\b.*\) = "),
    re.compile(r"&(?:mut |raw mut |raw const |fake shallow )?\(*_(\d+)\b"),  # written through a reference
    re.compile(r"=> _(\d+)\b"),  # asm: inout
    re.compile(r"\bout\([^)]*\) _(\d+)\b"),  # asm: out
]
READ = [
    re.compile(r"\b(?:copy|move) \(*\*?_(\d+)\b"),
    re.compile(r"\b(?:discriminant|Len|PtrMetadata)\((?:copy |move )?\(*_(\d+)\b"),
]
UNINHABITED = re.compile(r"Infallible|^!$|\bNever\b")


def functions(path):
    """Each function's first line, and its body."""
    head, body = None, []
    with open(path, errors="replace") as lines:
        for line in lines:
            line = line.rstrip("\n")
            if line and not line[0].isspace() and line.endswith("{"):
                head, body = line, []
            elif line == "}" and head:
                yield head, "\n".join(body)
                head = None
            elif head:
                body.append(line)


def unassigned(head, body):
    assigned = {0} | {int(n) for n in re.findall(r"_(\d+): ", head)}
    for pattern in ASSIGNED:
        assigned |= {int(n) for n in pattern.findall(body)}
    read = {int(n) for pattern in READ for n in pattern.findall(body)}
    for local in sorted(read - assigned):
        declared = re.search(rf"let (?:mut )?_{local}: (.*);", body)
        kind = declared[1] if declared else "?"
        if not UNINHABITED.search(kind):
            yield local, kind


def main():
    found = looked_at = 0
    for path in sys.argv[1:]:
        for head, body in functions(path):
            looked_at += 1
            for local, kind in unassigned(head, body):
                print(f"{path}: {head[:120]}: _{local}: {kind} is read and never assigned")
                found += 1
    if looked_at == 0:
        sys.exit("unassigned.py: no function in these files; make them by RUSTFLAGS=--emit=mir cargo build --release")
    print(f"{looked_at} functions, {found} read what is never assigned")
    sys.exit(found > 0)


main()
