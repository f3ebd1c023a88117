# bash completion for titanctl; written by `titanctl completion bash`.
# Load it with: source <(titanctl completion bash)
_titanctl() {
    local cur=${COMP_WORDS[COMP_CWORD]}
    mapfile -t COMPREPLY < <(titanctl __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [ "${COMPREPLY[0]}" = :files ]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "${cur#[=:]}")
    fi
}
complete -F _titanctl titanctl
