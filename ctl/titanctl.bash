# bash completion for titanctl; written by `titanctl completion bash`.
# Load it with: source <(titanctl completion bash)

_titanctl_jobs() {
    titanctl ${server:+--server "$server"} list --limit 50 2>/dev/null | awk 'NR > 1 {print $1}'
}

_titanctl_nodes() {
    titanctl ${server:+--server "$server"} nodes 2>/dev/null | awk 'NR > 1 {print $1}'
}

_titanctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local commands='submit run status list cancel resize checkpoint wait logs events metrics nodes counters drain undrain node checkpoints generate convert plan pki admin audit token version help completion' command='' server='' i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        -s | --server) server=${COMP_WORDS[++i]} ;;
        -o | --output | --token-file | --tls-ca | --tls-cert | --tls-key) ((++i)) ;;
        -*) ;;
        *) [ -n "$command" ] || command=${COMP_WORDS[i]} ;;
        esac
    done
    case $command:$prev in
    *:--server | *:-s)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    *:--tls-ca)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    *:--tls-cert)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    *:--tls-key)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    *:--token-file)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    *:--output | *:-o)
        COMPREPLY=($(compgen -W 'table json' -- "$cur"))
        return
        ;;
    submit:--set)
        COMPREPLY=()
        return
        ;;
    submit:--name)
        COMPREPLY=()
        return
        ;;
    submit:--idempotency-key)
        COMPREPLY=()
        return
        ;;
    submit:--priority | submit:-p)
        COMPREPLY=()
        return
        ;;
    submit:--for)
        COMPREPLY=()
        return
        ;;
    run:--workers | run:-n)
        COMPREPLY=()
        return
        ;;
    run:--set)
        COMPREPLY=()
        return
        ;;
    run:--name)
        COMPREPLY=()
        return
        ;;
    run:--state-dir)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    list:--state)
        COMPREPLY=($(compgen -W 'PENDING FORMING RUNNING RECOVERING RESIZING CANCELLING COMPLETED FAILED CANCELLED' -- "$cur"))
        return
        ;;
    list:--user | list:-u)
        COMPREPLY=()
        return
        ;;
    list:--limit | list:-n)
        COMPREPLY=()
        return
        ;;
    cancel:--reason)
        COMPREPLY=()
        return
        ;;
    cancel:--grace)
        COMPREPLY=()
        return
        ;;
    wait:--timeout | wait:-t)
        COMPREPLY=()
        return
        ;;
    logs:--rank | logs:-r)
        COMPREPLY=()
        return
        ;;
    logs:--tail | logs:-n)
        COMPREPLY=()
        return
        ;;
    events:--after)
        COMPREPLY=()
        return
        ;;
    metrics:--after)
        COMPREPLY=()
        return
        ;;
    drain:--deadline)
        COMPREPLY=()
        return
        ;;
    drain:--reason)
        COMPREPLY=()
        return
        ;;
    drain:--from)
        COMPREPLY=()
        return
        ;;
    drain:--for)
        COMPREPLY=()
        return
        ;;
    drain:--lead)
        COMPREPLY=()
        return
        ;;
    node:--ttl)
        COMPREPLY=()
        return
        ;;
    node:--address)
        COMPREPLY=()
        return
        ;;
    node:--reason)
        COMPREPLY=()
        return
        ;;
    generate:--prompt | generate:-p)
        COMPREPLY=()
        return
        ;;
    generate:--max-tokens | generate:-n)
        COMPREPLY=()
        return
        ;;
    generate:--temperature | generate:-t)
        COMPREPLY=()
        return
        ;;
    generate:--top-k)
        COMPREPLY=()
        return
        ;;
    generate:--seed)
        COMPREPLY=()
        return
        ;;
    generate:--step)
        COMPREPLY=()
        return
        ;;
    convert:--step)
        COMPREPLY=()
        return
        ;;
    plan:--world | plan:-n)
        COMPREPLY=()
        return
        ;;
    plan:--device | plan:-d)
        COMPREPLY=()
        return
        ;;
    plan:--memory | plan:-m)
        COMPREPLY=()
        return
        ;;
    plan:--timeline | plan:-t)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    plan:--picture | plan:-p)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    plan:--set)
        COMPREPLY=()
        return
        ;;
    pki:--state-dir)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    pki:--pki-dir)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    pki:--address)
        COMPREPLY=()
        return
        ;;
    pki:--name)
        COMPREPLY=()
        return
        ;;
    pki:--days)
        COMPREPLY=()
        return
        ;;
    pki:--reason)
        COMPREPLY=()
        return
        ;;
    pki:--out)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    admin:--keep)
        COMPREPLY=()
        return
        ;;
    admin:--state-dir)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    admin:--above)
        COMPREPLY=()
        return
        ;;
    audit:--since)
        COMPREPLY=()
        return
        ;;
    audit:--actor)
        COMPREPLY=()
        return
        ;;
    audit:--after)
        COMPREPLY=()
        return
        ;;
    token:--role)
        COMPREPLY=()
        return
        ;;
    token:--ttl)
        COMPREPLY=()
        return
        ;;
    esac
    local options='--server -s --tls-ca --tls-cert --tls-key --insecure --token-file --output -o --help -h --version -V'
    case $command in
    '')
        COMPREPLY=($(compgen -W "$commands $options" -- "$cur"))
        return
        ;;
    submit)
        options+=' --set --name --idempotency-key --priority -p --for --follow -f'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -f -- "$cur"))
        ;;
    run)
        options+=' --workers -n --set --name --state-dir'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -f -- "$cur"))
        ;;
    status)
        options+=''
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    list)
        options+=' --state --user -u --limit -n --wide -w'
        [[ $cur == -* ]] || COMPREPLY=()
        ;;
    cancel)
        options+=' --reason --grace --checkpoint -c'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    resize)
        options+=' --wait -w'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    checkpoint)
        options+=''
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    wait)
        options+=' --timeout -t --follow -f'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    logs)
        options+=' --follow -f --rank -r --tail -n'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    events)
        options+=' --follow -f --after'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    metrics)
        options+=' --follow -f --plot -p --after'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    nodes)
        options+=' --wide -w'
        [[ $cur == -* ]] || COMPREPLY=()
        ;;
    counters)
        options+=''
        [[ $cur == -* ]] || COMPREPLY=()
        ;;
    drain)
        options+=' --deadline --reason --from --for --lead'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_nodes)" -- "$cur"))
        ;;
    undrain)
        options+=''
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_nodes)" -- "$cur"))
        ;;
    node)
        options+=' --ttl --address --reason'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_nodes)" -- "$cur"))
        ;;
    checkpoints)
        options+=''
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    generate)
        options+=' --prompt -p --max-tokens -n --temperature -t --top-k --seed --step'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    convert)
        options+=' --step --force -f'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$(_titanctl_jobs)" -- "$cur"))
        ;;
    plan)
        options+=' --world -n --device -d --memory -m --timeline -t --picture -p --search --print --set'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -f -- "$cur"))
        ;;
    pki)
        options+=' --state-dir --pki-dir --address --name --days --reason --out'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -f -- "$cur"))
        ;;
    admin)
        options+=' --keep --state-dir --above --fix --rederive'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -f -- "$cur"))
        ;;
    audit)
        options+=' --since --actor --after --follow -f'
        [[ $cur == -* ]] || COMPREPLY=()
        ;;
    token)
        options+=' --role --ttl'
        [[ $cur == -* ]] || COMPREPLY=()
        ;;
    version)
        options+=' --client'
        [[ $cur == -* ]] || COMPREPLY=()
        ;;
    help)
        options+=' --man'
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W "$commands" -- "$cur"))
        ;;
    completion)
        options+=''
        [[ $cur == -* ]] || COMPREPLY=($(compgen -W 'bash' -- "$cur"))
        ;;
    esac
    [[ $cur == -* ]] && COMPREPLY=($(compgen -W "$options" -- "$cur"))
    return 0
}

complete -o filenames -F _titanctl titanctl
