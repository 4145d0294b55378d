// moxie completions: what bash, zsh and fish offer behind `moxie`, written from the table of
// switches. The scripts never start the binary: models are read from the folders of the Hugging
// Face cache by the shell's own patterns, so that a completion is quick and cannot fail.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "apps/switches.h"

namespace moxie {
namespace {

// 'text' for bash and zsh, with single quotes inside as they ask for.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string with_backslashes(const std::string& text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// "harmony render" to "harmony_render": a shell function's name.
std::string joined(std::string path, char with) {
  std::replace(path.begin(), path.end(), ' ', with);
  return path;
}

std::string names_of(const CommandSwitches& command) {
  std::string text;
  for (const Switch& one : command.switches) {
    text += (text.empty() ? "" : " ") + one.name;
    if (!one.short_name.empty()) text += " " + one.short_name;
  }
  return text;
}

std::string sub_names(const Command& command) {
  std::string text;
  for (const Command& sub : command.subcommands) text += (text.empty() ? "" : " ") + sub.name;
  return text;
}

// What the positional is: a model, or words that nothing is known of.
Takes positional_takes(const CommandSwitches& command) {
  return command.positional.name == "M" ? Takes::kModel : Takes::kText;
}

constexpr const char* kBashHead =
    R"sh(# bash completion of moxie, written by `moxie completions bash`.

_moxie_models() {
  local cache folder name
  cache=${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-}}
  [[ -n $cache ]] || cache=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub
  echo embedded synthetic:gpt-oss-120b synthetic:gpt-oss-20b
  for folder in "$cache"/models--*; do
    [[ -d $folder ]] || continue
    name=${folder##*/models--}
    echo "${name/--//}"
  done
}

_moxie() {
  local line=${COMP_LINE:0:COMP_POINT} words=() word current='' before='' command='' flags=''
  local values='' kind=none subcommands='' keep
  read -r -a words <<<"$line"
  if [[ $line != *[[:space:]] ]]; then
    current=${words[-1]}
    unset 'words[-1]'
  fi
  before=${words[-1]-}
  for word in "${words[@]:1}"; do # the command, and its subcommand
    case "$command $word" in
)sh";
constexpr const char* kBashTail = R"sh(  esac
  if [[ -z $kind && -z $values ]]; then # no value is awaited
    if [[ -n $subcommands && $current != -* ]]; then
      values=$subcommands
    elif [[ $current == -* ]]; then
      values=$flags
    else
      kind=$positional
    fi
  fi
  COMPREPLY=()
  case $kind in
    models)
      mapfile -t COMPREPLY < <(
        compgen -W "$(_moxie_models)" -- "$current"
        compgen -f -- "$current"
      )
      ;;
    files) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    '') mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current") ;;
  esac
  # Readline replaces the text behind the last : or = alone.
  keep=${current%"${current##*[:=]}"}
  if [[ -n $keep && $COMP_WORDBREAKS == *:* ]]; then
    COMPREPLY=("${COMPREPLY[@]#"$keep"}")
  fi
}
complete -o filenames -F _moxie moxie
)sh";

std::string bash_kind(const Switch& one) {
  switch (one.takes) {
    case Takes::kFile:
    case Takes::kFolder:
      return "kind=files";
    case Takes::kModel:
      return "kind=models";
    default:
      break;
  }
  if (one.values.empty()) return "kind=none";
  return "values=" + shell_quoted(fmt::format("{}", fmt::join(one.values, " ")));
}

std::string bash_script(const std::vector<CommandSwitches>& all) {
  std::string top, text = kBashHead;
  for (const CommandSwitches& one : all) {
    const size_t space = one.path.rfind(' ');
    const std::string parent = space == std::string::npos ? "" : one.path.substr(0, space);
    if (parent.empty()) top += (top.empty() ? "" : " ") + one.path;
    text += fmt::format("      {}) command={} ;;\n", shell_quoted(parent + " " + one.command->name),
                        shell_quoted(one.path));
  }
  text += "    esac\n  done\n";
  text +=
      "  if [[ $current == --*=* ]]; then\n    before=${current%%=*}\n    current=${current#*=}\n"
      "  fi\n  local positional=none\n  kind=''\n  case $command in\n";
  text += fmt::format("    '')\n      subcommands={}\n      flags='--help --version'\n      ;;\n",
                      shell_quoted(top));
  for (const CommandSwitches& one : all) {
    text += fmt::format("    {})\n      flags={}\n", shell_quoted(one.path),
                        shell_quoted(names_of(one)));
    if (!one.command->subcommands.empty()) {
      text += fmt::format("      subcommands={}\n", shell_quoted(sub_names(*one.command)));
    }
    if (positional_takes(one) == Takes::kModel) text += "      positional=models\n";
    std::map<std::string, std::string> by_kind;  // switches that take the same are one line
    for (const Switch& flag : one.switches) {
      if (flag.takes == Takes::kNothing) continue;
      std::string& names = by_kind[bash_kind(flag)];
      names += (names.empty() ? "" : " | ") + flag.name;
      if (!flag.short_name.empty()) names += " | " + flag.short_name;
    }
    if (!by_kind.empty()) text += "      case $before in\n";
    for (const auto& [kind, names] : by_kind) {
      text += fmt::format("        {}) {} ;;\n", names, kind);
    }
    text += by_kind.empty() ? "      ;;\n" : "      esac\n      ;;\n";
  }
  return text + kBashTail;
}

constexpr const char* kZshHead = R"sh(#compdef moxie
# zsh completion of moxie, written by `moxie completions zsh`.

_moxie_models() {
  local cache=${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}}
  local -a models=(embedded synthetic:gpt-oss-120b synthetic:gpt-oss-20b)
  models+=(${${${(f)" $(print - rl-- $cache / models-- *
                                     (N /
                                      : t)) "}#models--}/--//})
                                 compadd -
                                 a models _files
}

)sh";
constexpr const char* kZshTail = R"sh(
if [[ $funcstack[1] == _moxie ]]; then
  _moxie "$@"
else
  compdef _moxie moxie
fi
)sh";

std::string zsh_action(Takes takes, const std::vector<std::string>& values) {
  switch (takes) {
    case Takes::kFile:
      return "_files";
    case Takes::kFolder:
      return "_files -/";
    case Takes::kModel:
      return "_moxie_models";
    default:
      break;
  }
  return values.empty() ? " " : fmt::format("({})", fmt::join(values, " "));
}

// One specification of _arguments: '--port=[0: any free one]:INT: '.
std::string zsh_spec(const Switch& one, const std::string& name) {
  const std::string help = with_backslashes(one.help, "[]\\");
  std::string text = one.is_repeatable ? "*" : "";
  text += name;
  if (one.takes == Takes::kNothing) return shell_quoted(text + "[" + help + "]");
  text += name.starts_with("--") ? "=" : "";
  return shell_quoted(fmt::format("{}[{}]:{}:{}", text, help, with_backslashes(one.type, ":"),
                                  zsh_action(one.takes, one.values)));
}

// Behind the command's name: which function completes the rest.
std::string zsh_choice(const std::vector<Command>& commands, const std::string& prefix) {
  std::string text = "  case $state in\n    command)\n      local -a commands=(\n";
  for (const Command& command : commands) {
    text += fmt::format("        {}\n", shell_quoted(command.name + ":" +
                                                     with_backslashes(command.summary, ":\\")));
  }
  text +=
      "      )\n      _describe command commands\n      ;;\n    rest)\n      case $words[1] in\n";
  for (const Command& command : commands) {
    text += fmt::format("        {}) {}{} ;;\n", command.name, prefix, command.name);
  }
  return text + "      esac\n      ;;\n  esac\n}\n";
}

std::string zsh_script(const std::vector<Command>& commands,
                       const std::vector<CommandSwitches>& all) {
  std::string text = kZshHead;
  for (const CommandSwitches& one : all) {
    const std::string function = "_moxie_" + joined(one.path, '_');
    const bool has_subs = !one.command->subcommands.empty();
    text += function + "() {\n";
    if (has_subs) text += "  local curcontext=$curcontext state line\n  typeset -A opt_args\n";
    text += has_subs ? "  _arguments -C" : "  _arguments -s -S";
    for (const Switch& flag : one.switches) {
      for (const std::string& name : {flag.name, flag.short_name}) {
        if (!name.empty()) text += " \\\n    " + zsh_spec(flag, name);
      }
    }
    if (has_subs) text += " \\\n    '1:command:->command' \\\n    '*::argument:->rest'";
    if (!one.positional.name.empty()) {
      text += fmt::format(" \\\n    {}",
                          shell_quoted(fmt::format("*:{}:{}", one.positional.name,
                                                   zsh_action(positional_takes(one), {}))));
    }
    text += "\n";
    text += has_subs ? zsh_choice(one.command->subcommands, function + "_") : "}\n";
  }
  text +=
      "_moxie() {\n  local curcontext=$curcontext state line\n  typeset -A opt_args\n"
      "  _arguments -C \\\n    '(- *)'{-h,--help}'[commands, then exit]' \\\n"
      "    '--version[version, commit and build, then exit]' \\\n"
      "    '1:command:->command' \\\n    '*::argument:->rest'\n";
  return text + zsh_choice(commands, "_moxie_") + kZshTail;
}

constexpr const char* kFishHead =
    R"sh(# fish completion of moxie, written by `moxie completions fish`.

function __moxie_models
    set -l cache $HOME/.cache/huggingface/hub
    set -q XDG_CACHE_HOME; and set cache $XDG_CACHE_HOME/huggingface/hub
    set -q HF_HOME; and set cache $HF_HOME/hub
    set -q HUGGINGFACE_HUB_CACHE; and set cache $HUGGINGFACE_HUB_CACHE
    set -q HF_HUB_CACHE; and set cache $HF_HUB_CACHE
    printf '%s\n' embedded synthetic:gpt-oss-120b synthetic:gpt-oss-20b
    for folder in $cache/models--*
        string replace -r '.*/models--' '' -- $folder | string replace -- -- /
    end
    __fish_complete_path (commandline -ct)
end

complete -c moxie -f
complete -c moxie -n __fish_use_subcommand -s h -l help -d 'commands, then exit'
complete -c moxie -n __fish_use_subcommand -l version -d 'version, commit and build, then exit'
)sh";

// 'text' for fish, which knows backslashes in single quotes.
std::string fish_quoted(const std::string& text) {
  return "'" + with_backslashes(text, "\\'") + "'";
}

std::string fish_switch(const Switch& one, const std::string& condition) {
  std::string text = fmt::format("complete -c moxie -n {} -l {}", condition, one.name.substr(2));
  if (!one.short_name.empty()) text += " -s " + one.short_name.substr(1);
  switch (one.takes) {
    case Takes::kNothing:
      break;
    case Takes::kFile:
    case Takes::kFolder:
      text += " -r -F";
      break;
    case Takes::kModel:
      text += " -x -a '(__moxie_models)'";
      break;
    case Takes::kText:
      text += " -x";
      if (!one.values.empty()) {
        text += " -a " + fish_quoted(fmt::format("{}", fmt::join(one.values, " ")));
      }
  }
  return text + " -d " + fish_quoted(one.help) + "\n";
}

std::string fish_script(const std::vector<CommandSwitches>& all) {
  std::string text = kFishHead;
  for (const CommandSwitches& one : all) {
    const size_t space = one.path.rfind(' ');
    std::string condition = "__fish_use_subcommand", own;
    if (space != std::string::npos) {
      const std::string parent = one.path.substr(0, space);
      condition = fish_quoted("__fish_seen_subcommand_from " + parent);
      own = "__fish_seen_subcommand_from " + parent + "; and ";
    }
    text += fmt::format("complete -c moxie -n {} -a {} -d {}\n", condition, one.command->name,
                        fish_quoted(one.command->summary));
    own = fish_quoted(own + "__fish_seen_subcommand_from " + one.command->name);
    for (const Switch& flag : one.switches) text += fish_switch(flag, own);
    if (positional_takes(one) == Takes::kModel) {
      text += fmt::format("complete -c moxie -n {} -a '(__moxie_models)'\n", own);
    }
  }
  return text;
}

Command shell_command(const char* shell, const char* example, std::function<std::string()> script) {
  return {.name = shell,
          .summary = fmt::format("The script for {}, to stdout", shell),
          .example = example,
          .run = [script = std::move(script)](const Flags&) {
            std::fputs(script().c_str(), stdout);
            return kExitDone;
          }};
}

}  // namespace

Command completions_command(const std::vector<Command>* commands) {
  return {
      .name = "completions",
      .summary = "Scripts with which shells complete commands, switches and models",
      .example = "source <(moxie completions bash)",
      .subcommands = {shell_command("bash", "source <(moxie completions bash)",
                                    [=] { return bash_script(switches_of(*commands)); }),
                      shell_command("zsh", "source <(moxie completions zsh)",
                                    [=] { return zsh_script(*commands, switches_of(*commands)); }),
                      shell_command("fish", "moxie completions fish | source",
                                    [=] { return fish_script(switches_of(*commands)); })}};
}

}  // namespace moxie
