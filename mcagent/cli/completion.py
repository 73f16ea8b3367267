"""`mcagent completion`: the scripts that make shells ask `mcagent __complete` what may come next."""

from __future__ import annotations

import argparse

from mcagent.cli.common import exit_codes

_EPILOG = """\
examples:
  source <(mcagent completion bash)                                        # in this shell
  mcagent completion bash > /etc/bash_completion.d/mcagent                 # in every one
  mcagent completion zsh > "${fpath[1]}/_mcagent"                          # with compinit; a new shell has it
  mcagent completion fish > ~/.config/fish/completions/mcagent.fish

The package has kubectl-mcagent and kubectl_complete-mcagent: where both are in $PATH, `kubectl mcagent` works, and
kubectl's own completion asks for the rest.
"""
_BASH = """\
_mcagent() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\\t'*}")
    done < <(mcagent __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _mcagent mcagent
"""
_ZSH = """\
#compdef mcagent
_mcagent() {
    local line tab=$'\\t'
    local -a found
    for line in "${(@f)$(mcagent __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n "$line" ]] && found+=("${${line%%$tab*}//:/\\\\:}:${line#*$tab}")
    done
    if (( $#found )); then _describe -t words mcagent found; else _files; fi
}
if [[ "$funcstack[1]" = _mcagent ]]; then _mcagent "$@"; else compdef _mcagent mcagent; fi
"""
_FISH = """\
function __mcagent_complete
    set -l words (commandline -opc) (commandline -ct)
    mcagent __complete $words[2..-1] 2>/dev/null
end
complete -c mcagent -f -n 'test (count (__mcagent_complete)) -gt 0' -a '(__mcagent_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    parser.description = "Print the script with which a shell completes commands, flags and their values."
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=[*SCRIPTS], help="whose script")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(SCRIPTS[args.shell], end="")
    return exit_codes.OK
