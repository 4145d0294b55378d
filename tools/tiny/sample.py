"""One question with its answer, before it becomes a conversation."""
import dataclasses


@dataclasses.dataclass
class Sample:
    """`analysis` is written at medium and high effort; `short` is the bare answer for terse styles.

    `check` says how an answer is judged: ("number", "12"), ("text", "needle"), ("json", object),
    ("call", name, arguments) or ("exact", text).
    """
    user: str
    final: str
    check: tuple
    analysis: str = ""
    short: str = ""
    instructions: str = ""          # developer instructions that the question needs
    tools: list = None              # function tools on offer
    call: tuple = None              # (name, arguments as JSON text): the answer is a tool call
    before: list = dataclasses.field(default_factory=list)  # rendered messages that stand before the user's
    after: list = dataclasses.field(default_factory=list)   # rendered messages after it: a call and its result
    styled: bool = True             # may a developer style (terse, capitals) be laid over it
    date: str = ""                  # the system message must give this date
    low_analysis: bool = False      # reason even at low effort
