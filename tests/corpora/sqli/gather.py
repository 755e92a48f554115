#!/usr/bin/env python3
"""Makes a corpus for the SQL-injection screen from lists that nobody has read, and prints counts only.

    gather.py DIRECTORY    # with the unpacked packages that README.md names, and what is to be known already: *.txt of this folder

Writes `attacks.0.txt`, `attacks.1.txt`, `ordinary.0.txt` and `ordinary.1.txt` into DIRECTORY. Which of the two files a value is in is said by the
first byte of its SHA-256; which values of a source are taken is said by the other bytes. README.md says the same rules in words.
"""

import csv
import hashlib
import json
import pathlib
import re
import sys

csv.field_size_limit(1 << 30)
HERE = pathlib.Path(__file__).parent
LONGEST = 700
ATTACKS = 4000

STATEMENT = re.compile(
    r"""[\s(]*(select|insert|update|delete|create|drop|alter|truncate|exec|execute|declare|set|grant|revoke|with|begin|merge|replace|call
        |show|use|shutdown|explain|describe|load|backup|restore|rename|copy|do|values|table)\b""",
    re.I | re.X,
)
MARKS = re.compile(r"""[=<>!|&+*/%^'"`();#~\[\]]|--""")
NUMBER_AND_COMMENT = re.compile(r"\s*-?\d*\s*(--[^\n]*|\#[^\n]*|/\*((?!\*/).)*)\s*", re.S)
JOINS = re.compile(
    r"\b(or|and|xor|like|rlike|regexp|between|in|is|union|order\s+by|group\s+by|having|limit|procedure|div|mod|not)\b", re.I
)
COMMENT = re.compile(r"(--|\#|/\*(?!!)).*", re.S)
UNION_ALONE = re.compile(r"\bunion\b(?!.*\b(select|values|table)\b)", re.I | re.S)
CALL = re.compile(r"\s*[\w.@$]+\s*\(.*\)\s*", re.S)
CASE = re.compile(r"\s*case\b.*\bend\s*", re.I | re.S)
OTHER = re.compile(
    r"""<script|javascript|\bon[a-z]+\s*=|\$ne\b|\$gt\b|\$where\b|<!|<\?|<[a-z]+\s*[>=]|</|document\.cookie|alert\(|\.match\(/|import\s|socket
        |\{file\}|/etc/|/(usr/)?s?bin/|(\.|0x2e)+(/|0x2f|0x5c)|\b[a-z]:/|^/[a-z]+$|^`[^`]*`$|^"`[^`]*`"$|cmd\.exe|/aaaa""",
    re.I | re.X,
)
SQL = re.compile(r"\b(select|union|insert|load_file|exec|waitfor|sleep|benchmark|or|and|order\s+by|drop|having|like)\b|--", re.I)
PROBE = re.compile(r"""[\s'"`();%^]*\w*[\s'"`();%^|]*\w?[\s'"`();%^]*""")
OPERATOR = re.compile(r"""(\w+ )?(['"`])\s*(\W{1,3}|(?:not |sounds )?[a-z]+)\s*\2( \w+)?""", re.I)


def left_out(value):
    """The rule by which a value of a list of attacks is no injection; None when it may be one."""
    if STATEMENT.match(value):
        return "statement"
    if OTHER.search(value) and not SQL.search(value):
        return "other"
    if PROBE.fullmatch(value):
        return "probe"
    if OPERATOR.fullmatch(value):
        return "operator"
    if NUMBER_AND_COMMENT.fullmatch(value) or not (MARKS.search(value) or JOINS.search(value)):
        return "bare"
    end = COMMENT.sub("", value).rstrip()
    if (end == value.rstrip() and (end.endswith(tuple("(,=<>|&+-^!")) or re.search(r"\(\s*[a-zA-Z]\w*$", end))) or UNION_ALONE.search(value):
        return "fragment"
    if CASE.fullmatch(value) or (CALL.fullmatch(value) and closes_at_the_end(value.strip())):
        return "expression"
    return None


def closes_at_the_end(value):
    depth = 0
    for at, character in enumerate(value):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == ")" and depth == 0:
            return at == len(value) - 1
    return False


def decoded(value):
    """What is written as in a URL is decoded once."""
    if " " in value or not re.search("%[0-9a-fA-F]{2}", value):
        return value
    raw = value.encode("utf-8", "surrogateescape").replace(b"+", b" ")
    return re.sub(rb"%([0-9a-fA-F]{2})", lambda found: bytes([int(found[1], 16)]), raw).decode("utf-8", "surrogateescape")


def skeleton(value):
    """Values that differ in numbers, case and spaces only are one."""
    return re.sub(r"\s+", " ", re.sub(r"0x[0-9a-f]+|[a-z_]*\d+[a-z0-9_]*", "9", value.lower())).strip()


def written(value):
    out = []
    for byte in value.encode("utf-8", "surrogateescape"):
        out.append({10: "\\n", 92: "\\\\"}.get(byte, chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"))
    # A line that begins with `# ` is the name of a source.
    return re.sub("^#", "\\\\x23", "".join(out))


def read(line):
    undone = re.sub(
        rb"\\(n|\\|x([0-9a-fA-F]{2}))",
        lambda found: {b"n": b"\n", b"\\": b"\\"}.get(found[1]) or bytes([int(found[2], 16)]),
        line.encode(),
    )
    return undone.decode("utf-8", "surrogateescape")


def protego(folder, label):
    for name in ("sqli_train", "sqli_test"):
        with open(folder / f"protego_sqli/protego/datasets/delivered/{name}.csv", encoding="utf-8", errors="surrogateescape") as file:
            for row in list(csv.reader(file))[1:]:
                if len(row) == 2 and row[1].startswith(label):
                    yield row[0]


def faker(folder):
    sys.path.insert(0, str(folder / "faker"))
    from faker import Faker
    from faker.config import AVAILABLE_LOCALES

    kinds = "name company street_address address job catch_phrase bs text sentence uri user_agent email city file_path color license_plate".split()
    for locale in sorted(AVAILABLE_LOCALES):
        made = Faker(locale)
        made.seed_instance(20261122)
        for kind in kinds:
            for _ in range(40):
                try:
                    yield str(getattr(made, kind)())
                except (AssertionError, AttributeError, TypeError, ValueError):
                    break


def user_agents(folder):
    with open(folder / "fake_useragent/fake_useragent/data/browsers.jsonl", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["useragent"]


def python_library(_):
    """Paragraphs of comments and docstrings, and lines of code with a quote in them."""
    for path in sorted(pathlib.Path("/usr/lib/python3.11").rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        for paragraph in re.split(r"\n\s*#?\s*\n", text):
            if len(paragraph) <= LONGEST:
                yield paragraph.strip()
        for line in text.splitlines():
            if "'" in line or '"' in line:
                yield line.strip()


def node_changes(_):
    for path in sorted(pathlib.Path("/usr/share/doc/nodejs").rglob("*.md*")):
        if path.suffix == ".md":
            for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
                yield line.strip(" *-#")


ORDINARY = [
    ("protego, ordinary", lambda folder: protego(folder, "0"), 4000),
    ("faker", faker, 2500),
    ("fake-useragent", user_agents, 500),
    ("python library", python_library, 2500),
    ("node documentation", node_changes, 500),
]


def digest(value):
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()


def put(folder, kind, name, values, most, seen):
    taken = [[], []]
    for value in sorted(set(values), key=lambda value: digest(value)[1:]):
        half = taken[digest(value)[0] & 1]
        bones = skeleton(value)
        if len(half) < most and bones not in seen:
            seen.add(bones)
            half.append(value)
    for number, half in enumerate(taken):
        with open(folder / f"{kind}.{number}.txt", "a", encoding="ascii") as file:
            file.write(f"# {name}\n" + "".join(written(value) + "\n" for value in half))
    print(f"{kind}, {name}: {len(taken[0])} and {len(taken[1])}")


def main():
    folder = pathlib.Path(sys.argv[1])
    seen = set()
    for path in HERE.glob("*.txt"):
        seen |= {skeleton(read(line)) for line in path.read_text(encoding="latin-1").split("\n") if line and not line.startswith("# ")}
    for path in folder.glob("*.[01].txt"):
        path.unlink()
    counts, kept = {}, []
    for value in map(decoded, protego(folder, "1")):
        why = left_out(value) if len(value) <= LONGEST else "long"
        counts[why or "kept"] = counts.get(why or "kept", 0) + 1
        if why is None:
            kept.append(value)
    print("attacks:", counts)
    put(folder, "attacks", "protego", kept, ATTACKS, seen)
    for name, source, most in ORDINARY:
        plain = [value for value in source(folder) if 2 <= len(value) <= LONGEST and not value.isalnum()]
        said = [value for value in plain if not STATEMENT.match(value)]
        print(f"{name}: {len(plain) - len(said)} whole statements of {len(plain)} left out")
        put(folder, "ordinary", name, said, most, seen)


if __name__ == "__main__":
    main()
