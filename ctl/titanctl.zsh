#compdef titanctl
# zsh completion for titanctl; written by `titanctl completion zsh`.
# Load it with: source <(titanctl completion zsh)
_titanctl() {
    local -a found
    found=(${(f)"$(titanctl __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if [[ $found[1] == :files ]]; then
        _files
    else
        compadd -- $found
    fi
}
if [[ $funcstack[1] == _titanctl ]]; then _titanctl; else compdef _titanctl titanctl; fi
