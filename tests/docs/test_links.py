"""links.py finds what is dead, and nothing else."""

import pathlib
import subprocess
import sys

LINKS = pathlib.Path(__file__).with_name("links.py")


def links(folder):
    return subprocess.run([sys.executable, str(LINKS), str(folder)], text=True, capture_output=True)


def test_dead_files_and_anchors_are_found(tmp_path):
    (tmp_path / "a.md").write_text(
        "# One `two` (three)\n[x](b.md) [y](none.md) [z](#one-two-three) [w](#two) [v](../out.md)\n"
        "[u](https://example.org/none.md) `[t](code.md)`\n```\n[s](fenced.md)\n```\n![p](none.png)\n")
    (tmp_path / "b.md").write_text("# Same\n## Same\n[x](a.md#one-two-three) [y](#same-1) [z](#same-2)\n")
    found = links(tmp_path)
    assert found.returncode == 1
    assert found.stdout.splitlines() == [
        "a.md: none.md: there is no such file", "a.md: #two: the file has no such heading",
        "a.md: ../out.md: it leaves the repository", "a.md: none.png: there is no such file",
        "b.md: #same-2: the file has no such heading", "2 Markdown files, 5 dead links"]


def test_a_tree_without_faults_passes(tmp_path):
    (tmp_path / "a.md").write_text("# A\n[a](#a)\n")
    assert links(tmp_path).returncode == 0
