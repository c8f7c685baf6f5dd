# Completion of switchyard for fish: commands, their flags, and the values of flags. The program prints them:
# `switchyard --help=commands` and `switchyard COMMAND --help=flags`.

# The words before the cursor, without the program.
function __switchyard_words
    set -l words (commandline -opc)
    test (count $words) -gt 1; and string join \n -- $words[2..-1]
end

# The first words of commands, or the second words after a first word of several commands.
function __switchyard_commands
    set -l words (__switchyard_words)
    set -l commands (switchyard --help=commands 2>/dev/null)
    switch (count $words)
        case 0
            for line in $commands
                set -l parts (string split \t -- $line)
                if string match -q '* *' -- $parts[1]
                    string split -f 1 ' ' -- $parts[1]
                else
                    echo $line
                end
            end | sort -u
        case 1
            string replace -f -r "^$words[1] " '' -- $commands
            test "$words[1]" = completion; and printf '%s\n' bash zsh fish
    end
end

# Lines of flags: name, summary, values.
function __switchyard_flags
    set -l words (__switchyard_words)
    test (count $words) -gt 0; or return
    set -l command $words[1]
    if switchyard --help=commands 2>/dev/null | string match -q -- "$command *"
        test (count $words) -gt 1; or return
        set command $words[1..2]
    end
    switchyard $command --help=flags 2>/dev/null
    # The flags of serve belong to a chat with a server of its own.
    if test "$words[1]" = chat; and contains -- --model-path $words
        switchyard serve --help=flags 2>/dev/null
    end
end

function __switchyard_flag_names
    __switchyard_flags | string replace -r '\t[^\t]*$' ''
end

# The values of the flag before the cursor, or file names.
function __switchyard_values
    set -l words (__switchyard_words)
    test (count $words) -gt 0; or return
    for line in (__switchyard_flags)
        set -l parts (string split \t -- $line)
        if test "$parts[1]" = "$words[-1]"
            test -n "$parts[3]" -a "$parts[3]" != '*'; and string split , -- $parts[3]
            return
        end
    end
end

function __switchyard_wants_command
    set -l words (__switchyard_words)
    switch (count $words)
        case 0
            return 0
        case 1
            test "$words[1]" = completion; and return 0
            switchyard --help=commands 2>/dev/null | string match -q -- "$words[1] *"
            return
    end
    return 1
end

complete -c switchyard -n __switchyard_wants_command -f -a '(__switchyard_commands)'
complete -c switchyard -n 'string match -q -- "-*" (commandline -ct)' -f -a '(__switchyard_flag_names)'
complete -c switchyard -a '(__switchyard_values)'
