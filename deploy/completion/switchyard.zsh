#compdef switchyard
# Completion of switchyard for zsh: commands, their flags, and the values of flags. The program prints them:
# `switchyard --help=commands` and `switchyard COMMAND --help=flags`.
_switchyard() {
  local tab=$'\t' line name summary values previous
  local -a commands command flags shown lines
  commands=("${(@f)$(switchyard --help=commands 2>/dev/null)}")
  if (( CURRENT == 2 )); then
    for line in $commands; do
      name=${line%%$tab*}
      # A first word that several commands share is shown once, without a summary.
      if [[ $name == *' '* ]]; then shown+=("${name%% *}"); else shown+=("$name:${line#*$tab}"); fi
    done
    shown=("${(@u)shown}")
    _describe -t commands 'command' shown
    return
  fi
  command=($words[2])
  lines=(${(M)commands:#$words[2] *})
  if (( $#lines )); then # a command of two words
    if (( CURRENT == 3 )); then
      for line in $lines; do shown+=("${${line%%$tab*}#* }:${line#*$tab}"); done
      _describe -t commands 'command' shown
      return
    fi
    command+=($words[3])
  fi
  flags=("${(@f)$(switchyard $command --help=flags 2>/dev/null)}")
  # The flags of serve belong to a chat with a server of its own.
  if [[ $words[2] == chat && ${words[(I)--model-path]} -gt 0 ]]; then
    flags+=("${(@f)$(switchyard serve --help=flags 2>/dev/null)}")
  fi
  if [[ $words[CURRENT] == -* ]]; then
    for line in $flags; do
      name=${line%%$tab*} summary=${${line#*$tab}%%$tab*}
      shown+=("$name:${summary//:/ }")
    done
    _describe -t flags 'flag' shown
    return
  fi
  if [[ $words[2] == completion ]]; then
    compadd bash zsh fish
    return
  fi
  previous=$words[CURRENT-1]
  for line in $flags; do
    [[ ${line%%$tab*} == $previous ]] || continue
    values=${line##*$tab}
    [[ -n $values && $values != '*' ]] && { compadd -- ${(s:,:)values}; return; }
    break
  done
  _files
}
# zsh loads this file as the function itself; a shell that reads it with eval registers the function.
if [[ $funcstack[1] == _switchyard ]]; then _switchyard "$@"; else compdef _switchyard switchyard; fi
