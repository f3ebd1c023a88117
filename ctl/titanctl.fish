# fish completion for titanctl; written by `titanctl completion fish`.
# Load it with: titanctl completion fish | source
function __titanctl_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found (titanctl __complete $words[2..-1] 2>/dev/null)
    if test "$found[1]" = :files
        __fish_complete_path (commandline -ct)
    else if test -n "$found[1]"
        printf '%s\n' $found
    end
end
complete -c titanctl -f -a '(__titanctl_complete)'
