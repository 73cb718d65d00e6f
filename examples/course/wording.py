"""Names, numbers and tables in the spelling of the report."""

NAMES = {
    "sync": "sync, our ring",
    "sync --collective": "sync, MPI's Allreduce",
}
QUIET = 0.1  # this many other threads do not disturb a measurement


def masters(count):
    return f"{count} master{'s' * (count > 1)}"


def mark_crowded(measured, p):
    return f"{p} *" if p > measured["machine"]["cores"] else str(p)


def percent(fraction):
    return f"{100 * fraction:.1f} %"


def table(names, rows):
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
