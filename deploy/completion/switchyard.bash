# Completion of switchyard for bash: commands, their flags, and the values of flags. The program prints them:
# `switchyard --help=commands` and `switchyard COMMAND --help=flags`.
_switchyard() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} first=${COMP_WORDS[1]}
  local commands flags words='' values
  local -a command
  COMPREPLY=()
  commands=$(switchyard --help=commands 2>/dev/null | cut -f 1)
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(cut -d ' ' -f 1 <<<"$commands" | sort -u)" -- "$word")
    return
  fi
  command=("$first")
  if grep -q "^$first " <<<"$commands"; then # a command of two words
    if [ "$COMP_CWORD" -eq 2 ]; then
      mapfile -t COMPREPLY < <(compgen -W "$(sed -n "s/^$first //p" <<<"$commands")" -- "$word")
      return
    fi
    command+=("${COMP_WORDS[2]}")
  fi
  flags=$(switchyard "${command[@]}" --help=flags 2>/dev/null)
  # The flags of serve belong to a chat with a server of its own.
  if [ "$first" = chat ] && [[ " ${COMP_WORDS[*]} " == *' --model-path '* ]]; then
    flags+=$'\n'$(switchyard serve --help=flags 2>/dev/null)
  fi
  # In bash, "=" is a word of its own: --flag = value.
  [ "$word" = '=' ] && word=''
  [ "$previous" = '=' ] && previous=${COMP_WORDS[COMP_CWORD - 2]}
  if [[ $word == -* ]]; then
    words=$(cut -f 1 <<<"$flags")
  elif [ "$first" = completion ] && [ "$COMP_CWORD" -eq 2 ]; then
    words='bash zsh fish'
  else
    values=$(awk -F '\t' -v flag="$previous" '$1 == flag {print $3; exit}' <<<"$flags")
    if [ -z "$values" ] || [ "$values" = '*' ]; then
      compopt -o default 2>/dev/null # file names
      return
    fi
    words=${values//,/ }
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _switchyard switchyard
