"""What a command says of names that do not exist: all of them in one sentence, with similar ones.

Owns: these sentences. Leaves to others: what exists, and the exit code.
"""

from collections.abc import Sequence

from minibroker.command_line import suggestion
from minibroker.protocol.ids import is_topic_name


def unknown_topics(names: Sequence[str], known: Sequence[str], *, may_create: bool = True) -> str:
    """The message for topics that do not exist; `known` are those that do. `may_create`: to create it may be the cure;
    it is none for one that is to be deleted."""
    cure = "`minibroker topic list` prints all topics"
    if len(names) > 1:
        return f"there are no topics {quoted(names, known)}. {cure}"
    creation = f"; `minibroker topic create -t {names[0]}` creates this one" if may_create else ""
    return f"there is no topic {sentence(names, known)} {cure}{creation}"


def impossible_topics(names: Sequence[str]) -> str | None:
    """The message for names that no topic may have, which no broker looks for; None if there is none."""
    impossible = [name for name in names if not is_topic_name(name)]
    if not impossible:
        return None
    which = ", ".join(f"'{name}'" for name in impossible)
    rule = "letters, digits, '.', '_' and '-'; give a topic alone, without a partition"
    return f"{which} {'is no topic' if len(impossible) == 1 else 'are no topic'}'s name: it consists of {rule}"


def sentence(names: Sequence[str], known: Sequence[str]) -> str:
    """As `quoted`, at the end of a sentence."""
    text = quoted(names, known)
    return text if text.endswith("?") else f"{text}."


def quoted(names: Sequence[str], known: Sequence[str]) -> str:
    """`'lime'; did you mean 'lines'?` or, of several names, `'lime' (did you mean 'lines'?), 'x'`."""
    if len(names) == 1:
        return f"'{names[0]}'{suggestion(names[0], known)}"
    near = [(name, suggestion(name, known).removeprefix("; ")) for name in names]
    return ", ".join(f"'{name}'{f' ({similar})' if similar else ''}" for name, similar in near)
