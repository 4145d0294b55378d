#!/usr/bin/env bash
# What build/package holds, installed where nothing of ours is: the .deb in a fresh Debian or Ubuntu
# root of this machine's release, the wheel in a fresh environment. Needs root, or user namespaces, for
# the first (mmdebstrap), and the packages of tools/setup.sh package-check.
#   tests/package/installed.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
deb=$(echo build/package/moxie_*.deb) wheel=$(echo build/package/moxie_engine-*.whl)
[[ -f $deb && -f $wheel ]] || { echo "installed: run make package first" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "-- $*"; }

say "lintian's errors"
lintian --allow-root --fail-on error --tag-display-limit 0 "$deb"

say "the package in a fresh root"
cp "$deb" "$work/moxie.deb"
cat >"$work/inside" <<'END'
set -euo pipefail
export HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
ours() { find / -xdev \( -path /proc -o -path /sys -o -path /tmp \) -prune -o -iname '*moxie*' -print; }
[[ -z $(ours) ]]
apt-get -q -o APT::Sandbox::User=root install -y --no-install-recommends /tmp/moxie.deb
moxie --version
answer=$(moxie run --threads 2 --quiet "17 + 25")
echo "$answer"
[[ $answer == *42* ]]
zcat /usr/share/man/man1/moxie.1.gz | grep -q '^.SS moxie serve'
bash -n /usr/share/bash-completion/completions/moxie
grep -q '^#compdef moxie' /usr/share/zsh/vendor-completions/_moxie
grep -q '^complete -c moxie' /usr/share/fish/vendor_completions.d/moxie.fish
grep -q 'common-licenses/Apache-2.0' /usr/share/doc/moxie/copyright
[[ -s /usr/share/common-licenses/Apache-2.0 ]]
grep -q 'Boost' /usr/share/doc/moxie/copyright
if [[ -e /usr/lib/systemd/system/moxie.service ]]; then
  grep -q '^ExecStart=/usr/bin/moxie serve' /usr/lib/systemd/system/moxie.service
fi
# Without what is only recommended, a command that needs it says what to install.
if moxie pull openai/gpt-oss-20b --dry-run 2>/tmp/said; then exit 1; fi
grep -q libcurl /tmp/said
apt-get -q remove -y moxie
left=$(ours)
[[ -z $left ]] || { echo "left behind: $left"; exit 1; }
echo "inside: all is well"
END
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mmdebstrap --quiet --variant=minbase "$suite" /dev/null \
  --customize-hook="copy-in $work/moxie.deb $work/inside /tmp" \
  --customize-hook='chroot "$1" bash /tmp/inside' 2>&1 | tee "$work/log"
grep -q '^inside: all is well$' "$work/log"

say "the wheel in a fresh environment"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install --no-index "$wheel"
in_venv() { env -u MOXIE_BINARY -u PYTHONPATH PATH="$work/venv/bin:/usr/bin:/bin" "$@"; }
cd "$work"
in_venv moxie run --threads 2 --quiet "17 + 25" | grep 42
in_venv python -m moxie --version
in_venv python -c '
import moxie
with moxie.Server(threads=2) as server:
    assert "42" in server.chat("What is 17 + 25?")
    assert "42" in "".join(server.chat("What is 17 + 25?", stream=True))
'
cd - >/dev/null

say "the tests of the Python package on what the wheel installed"
tools/python_env.sh build/python tests/server/requirements.txt
packages=$(echo "$work"/venv/lib/python3*/site-packages)
env -u MOXIE_BINARY PYTHONPATH="$packages" PYTHONDONTWRITEBYTECODE=1 \
  build/python/bin/python -m pytest -q -p no:cacheprovider tests/package/test_python_class.py

say "shells and man on what the installed program writes"
MOXIE_BINARY="$packages/moxie/bin/moxie" MOXIE_SHELLS=1 PYTHONDONTWRITEBYTECODE=1 \
  build/python/bin/python -m pytest -q -p no:cacheprovider tests/package/test_command_line.py
