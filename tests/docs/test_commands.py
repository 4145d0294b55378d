"""What the documents say of the command line is there: commands, and the switches of each. MOXIE_BINARY
names the program."""

import os
import pathlib
import re
import subprocess

import pytest

from links import markdown_files

ROOT = pathlib.Path(__file__).parents[2]
# Up to a bar, a comment or a redirection: what follows is another program's.
CALL = re.compile(r"\bmoxie +((?:[a-z][a-z0-9-]*)(?: [a-z][a-z-]*)?)((?: +[^`\n|#;&>]*)?)")


def help_of(*words):
    return subprocess.run([os.environ["MOXIE_BINARY"], *words, "--help"], capture_output=True, text=True,
                          check=True).stdout


def commands_in(said):
    """The names under "Subcommands:" of a help text."""
    listed = said.partition("Subcommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  ([a-z][a-z0-9-]*) ", listed, re.M)


@pytest.fixture(scope="module")
def switches():
    """Of each command, such as "bench serve", the names of its switches."""
    found = {}

    def add(*words):
        said = help_of(*words)
        found[" ".join(words)] = set(re.findall(r"^  (?:-\w,)?--([a-z0-9-]+)", said, re.M)) | set(
            re.findall(r"^  -(\w),--", said, re.M))
        for name in commands_in(said):
            add(*words, name)

    for name in commands_in(help_of()):
        add(name)
    return found


def calls(text):
    """(command with a possible second word, the rest of the line) of each call in a code span or block."""
    text = text.replace("\\\n", " ")
    code = re.findall(r"```.*?\n(.*?)```", text, re.S) + re.findall(r"`([^`\n]+)`", text)
    code += re.findall(r"^    (.+)$", text, re.M)
    for piece in code:
        yield from CALL.findall(piece)


def faults_in(text, switches):
    for words, rest in calls(text):
        first, _, second = words.partition(" ")
        if first not in switches:
            continue  # another program of this name, or prose
        command = words if words in switches else first
        for name in re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*)|(?<=\s)-([a-zA-Z])(?=\s)", rest):
            switch = name[0] or name[1]
            if switch not in switches[command] | {"help", "version", "json"}:
                yield f"moxie {command}: -{'-' if name[0] else ''}{switch}"


def test_every_switch_of_a_command_is_there(switches):
    faults = [f"{path.relative_to(ROOT)}: {fault}" for path in markdown_files(ROOT)
              for fault in faults_in(path.read_text(), switches)]
    assert faults == []
    calls_with_switches = [rest for path in markdown_files(ROOT) for _, rest in calls(path.read_text())
                           if "--" in rest]
    assert len(calls_with_switches) > 50


def test_switches_that_are_not_there_are_found(switches):
    text = "`moxie run --no-such \"x\"` and `moxie bench serve -z 3`\n\n    moxie op bench --inputs F\n"
    assert list(faults_in(text, switches)) == [
        "moxie run: --no-such", "moxie bench serve: -z", "moxie op bench: --inputs"]


def test_the_readme_names_every_command(switches):
    table = (ROOT / "README.md").read_text().partition("## Commands")[2].partition("\n## ")[0]
    named = set(re.findall(r"[a-z]+", " ".join(re.findall(r"`([^`]+)`", table))))
    assert {name for name in switches if " " not in name} <= named
