# shellcheck shell=bash
# The body of every job script here: launch the ranks, and continue in a new job before time runs out.
# Not to be submitted itself: the scripts beside it ask for the machines, then read this one.
#
# Arguments: [CONFIG] [OPTION...], as for `hpcfwi run`; CONFIG is inputs/marmousi.toml by default.
# HPCFWI_ROOT is where hpcfwi is installed, by default the folder that the job was submitted from.

# Python imports nothing from the folder that the job was submitted from, where others may write.
export PYTHONSAFEPATH=1

config=$HPCFWI_ROOT/inputs/marmousi.toml
if [[ $# -gt 0 && $1 != -* ]]; then
    config=$1
    shift
fi

source "$HPCFWI_ROOT/slurm/environment.sh"
: "${launch:?slurm/environment.sh does not say what starts the ranks}"

echo "Job $SLURM_JOB_ID, try $((${SLURM_RESTART_COUNT:-0} + 1)):" \
    "$SLURM_NTASKS ranks on $SLURM_JOB_NODELIST (${launch[*]})"

# Where the ranks of this job have stopped on request so far, on all its tries: what they said.
stops() {
    local log
    log=$(scontrol show job "$SLURM_JOB_ID" --oneliner | grep -o ' StdErr=[^ ]*')
    grep -oE '(after epoch [0-9]+; the same command )?goes on from (there|(epoch|shot) [0-9]+|the last checkpoint)' \
        "${log# StdErr=}" 2> /dev/null
}
stops_before=$(stops)

# Slurm signals this script alone (the B in --signal), and the launcher passes the signal on to every
# rank. The ranks finish the step or give it up, write a checkpoint and leave with 3.
# USR1 says that time runs out, so the job goes on later; TERM says that somebody wants it gone.
reason=none
interrupted=no
launcher=
on_signal() {
    reason=$1
    interrupted=yes
    [[ -z $launcher ]] || kill -USR1 "$launcher" 2> /dev/null
}
trap 'on_signal time' USR1
trap 'on_signal cancelled' TERM

restarts=${HPCFWI_RESTARTS:-2} # after failures, in one try of the job
while :; do
    "${launch[@]}" hpcfwi run "$config" "$@" &
    launcher=$!
    [[ $reason == none ]] || kill -USR1 "$launcher" # it came between two starts

    # A signal ends `wait`, but not the launcher.
    wait "$launcher"
    status=$?
    while [[ $interrupted == yes ]]; do
        interrupted=no
        wait "$launcher"
        status=$?
    done
    launcher=

    # torchrun makes a 1 of every code.
    [[ $status != 1 || $reason == none || $(stops) == "$stops_before" ]] || status=3

    # A bad input, stopped on request: nothing that another start would change.
    end="hpcfwi ended with $status"
    [[ $status != 137 ]] ||
        end+=" (killed, probably for memory: 'hpcfwi plan' says how much a rank needs)"
    case $status in 2 | 3) break ;; esac

    # The run directory proves what the launcher only says: srun ends with 0, too, where it could
    # not launch anything.
    hpcfwi status "$config" "$@"
    case $?:$status in
        0:0) break ;;
        0:*)
            echo "$end, but all epochs are done."
            status=0
            break
            ;;
        2:*)
            end="hpcfwi status ended with 2"
            status=2
            break
            ;;
        *:0)
            end="${launch[0]} ended with 0, but not all epochs are done"
            status=1
            ;;
    esac
    [[ $reason != cancelled && $restarts -gt 0 ]] || break
    if [[ $reason == time ]]; then
        echo "$end as time ran out; the job goes on from the last checkpoint." >&2
        status=3
        break
    fi
    restarts=$((restarts - 1))
    echo "$end; it starts again from the last checkpoint (then $restarts more times at most)."
done

# A 3 that nobody asked this script for is not requeued, nor a try that got no further than the one
# before: both could repeat themselves for ever.
case $status:$reason in
    0:*) echo "Job $SLURM_JOB_ID is done." ;;
    3:time)
        stops=$(stops)
        if [[ $stops != "$stops_before" && ${stops##*$'\n'} == "${stops_before##*$'\n'}" ]]; then
            echo "Stopped where the try before did: give the job more time, an epoch takes longer."
        else
            echo "Stopped with a checkpoint; the job goes back to the queue and will continue."
            scontrol requeue "$SLURM_JOB_ID"
        fi
        ;;
    3:*) echo "Stopped with a checkpoint: submit the same command again to continue." ;;
    *) echo "$end; the message is above." ;;
esac
exit "$status"
