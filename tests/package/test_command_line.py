"""Completions, the manual page and --version, held against what --help shows.

MOXIE_BINARY names the program. zsh, fish and man are asked for their opinion where MOXIE_SHELLS=1 says
that they are installed (tools/check.sh package).
"""

import json
import os
import pathlib
import re
import subprocess

import pytest

BINARY = os.environ["MOXIE_BINARY"]
SHELLS = os.environ.get("MOXIE_SHELLS") == "1"
COMMANDS = re.compile(r"^Subcommands:\n((?:  \S.*\n?|      .*\n?)+)", re.M)
SWITCH = re.compile(r"^  (-[\w,-]+)", re.M)


def run(*words, stdin=None, check=True, **more):
    return subprocess.run(words, input=stdin, text=True, capture_output=True, timeout=60, check=check,
                          **more)


def moxie(*words):
    return run(BINARY, *words).stdout


def commands(*path):
    """Every command with the switches of its --help: {("harmony", "render"): {"--for", ...}}."""
    text = moxie(*path, "--help")
    found = {path: {name for names in SWITCH.findall(text) for name in names.split(",")}}
    listed = COMMANDS.search(text)
    for line in listed.group(1).splitlines() if listed else []:
        if line.startswith("  ") and not line.startswith("   "):
            found |= commands(*path, line.split()[0])
    return found


@pytest.fixture(scope="module")
def helped():
    found = commands()
    assert len(found) > 15 and ("harmony", "render") in found and len(found[("serve",)]) > 40
    return found


@pytest.fixture(scope="module")
def bash_script():
    return moxie("completions", "bash")


def completed(script, line, **environment):
    """What bash offers behind `line`."""
    end = 'COMP_LINE=$LINE COMP_POINT=${#LINE}; _moxie; printf "%s\\n" "${COMPREPLY[@]}"'
    answer = run("bash", "--norc", "-c", f"{script}\n{end}",
                 env={"PATH": os.environ["PATH"], "LINE": line, **environment})
    assert answer.stderr == ""
    return set(answer.stdout.split())


def test_bash_offers_every_command_and_switch_of_help(bash_script, helped):
    for path, switches in helped.items():
        words = " ".join(["moxie", *path])
        subs = {other[-1] for other in helped if other[:-1] == path and other}
        if subs:
            assert completed(bash_script, words + " ") == subs
        # At the top --json belongs to --version alone.
        expected = {"--help", "--version"} if not path else switches
        assert completed(bash_script, words + " -") == expected, words


def test_bash_offers_values_files_and_models(bash_script, tmp_path):
    def offered(line, **more):
        return completed(bash_script, line, **more)

    assert offered("moxie run --device ") == {"auto", "cpu", "cuda"}
    assert offered("moxie run --device=c") == {"cpu", "cuda"}
    assert offered("moxie chat --reasoning-effort ") == {"low", "medium", "high"}
    assert offered("moxie harmony render --for c") == {"completion", "conversation"}
    assert offered("moxie run --temperature ") == set()
    (tmp_path / "tools.json").write_text("{}")
    assert offered(f"moxie run --tools {tmp_path}/t") == {f"{tmp_path}/tools.json"}
    (tmp_path / "hub" / "models--openai--gpt-oss-20b").mkdir(parents=True)
    assert "openai/gpt-oss-20b" in offered("moxie serve --model ", HF_HOME=str(tmp_path))
    assert offered("moxie inspect emb", HF_HOME=str(tmp_path)) == {"embedded"}
    # Readline replaces what stands behind the colon.
    assert offered("moxie plan --model synthetic:gpt-oss-2", HOME="/nowhere") == {"gpt-oss-20b"}


def test_zsh_has_every_command_and_switch_of_help(helped):
    script = moxie("completions", "zsh")
    for path, switches in helped.items():
        name = "_".join(["_moxie", *path])
        body = script.split(f"\n{name}() {{\n", 1)[1].split("\n}\n", 1)[0]
        for switch in switches - ({"-h", "--help", "--json"} if not path else set()):
            assert re.search(rf"'\*?{re.escape(switch)}[\[=]", body), f"{name} {switch}"
    if SHELLS:
        run("zsh", "-n", stdin=script)


def test_fish_has_every_command_and_switch_of_help(helped):
    lines = moxie("completions", "fish").splitlines()
    for path, switches in helped.items():
        if not path:
            continue
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in path)
        own = [line for line in lines if f"-n '{seen}' " in line]
        assert any(f" -a {path[-1]} -d " in line for line in lines), path
        for switch in switches:
            word = rf" -l {switch[2:]} " if switch.startswith("--") else rf" -s {switch[1:]} "
            assert any(word in line for line in own), f"{path} {switch}"
    if SHELLS:
        run("fish", "-n", stdin="\n".join(lines))


def test_the_manual_page_has_every_command_and_switch_of_help(helped):
    page = moxie("man")
    sections = dict(part.split("\n", 1) for part in page.split(".SS moxie ")[1:])
    common = page.split(".SH SWITCHES OF SEVERAL COMMANDS\n", 1)[1]
    for path, switches in helped.items():
        if not path:
            continue
        section = sections[" ".join(path).replace("-", "\\-")]
        for switch in switches - {"-h"}:
            name = switch.replace("-", "\\-")
            assert re.search(re.escape(name) + r"(?![\w\\])", section), f"{path} {switch}"
            described = f".B {name}", f", {name}", f".B {name},"
            assert any(word in section or word in common for word in described), f"{path} {switch}"
    if SHELLS:
        shown = run("man", "--warnings", "-l", "-", stdin=page, env={**os.environ, "MANWIDTH": "80"})
        assert shown.stderr == ""
        assert "moxie serve" in shown.stdout


def test_version_says_what_the_build_is():
    told = json.loads(moxie("--version", "--json"))
    lines = moxie("--version").splitlines()
    source = (pathlib.Path(__file__).parents[2] / "CMakeLists.txt").read_text()
    assert told["version"] == re.search(r"project\(moxie VERSION (\S+)", source).group(1)
    assert lines[0] == f"moxie {told['version']}"
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", told["commit"])
    assert lines[1].split()[:2] == ["commit", told["commit"]]
    assert ("with local changes" in lines[1]) == told["local_changes"]
    assert told["build_type"] in lines[2] and told["compiler"] in lines[2]
    assert all(name in lines[3] for name in told["cpu_features"])
    assert (told["cuda"] is None) == (lines[4].split(None, 1)[1] == "without CUDA")


def test_json_without_a_command_belongs_to_version():
    refused = run(BINARY, "--json", check=False)
    assert refused.returncode == 2 and "--version" in refused.stderr
