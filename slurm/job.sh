# shellcheck shell=bash
# The body of every job script here: launch the ranks, and continue in a new job before time runs out.
# Not to be submitted itself: the scripts beside it ask for the machines, then read this one.
#
# Arguments: [CONFIG] [OPTION...], as for `hpcfwi run`; CONFIG is inputs/marmousi.toml by default.

config=inputs/marmousi.toml
if [[ $# -gt 0 && $1 != -* ]]; then
    config=$1
    shift
fi

source slurm/environment.sh

echo "Job $SLURM_JOB_ID, try $((${SLURM_RESTART_COUNT:-0} + 1)):" \
    "$SLURM_NTASKS ranks on $SLURM_JOB_NODELIST (srun --mpi=$mpi_plugin)"

# Slurm signals this script alone (the B in --signal), and srun passes the signal on to every rank.
# The ranks finish the step or give it up, write a checkpoint and leave with 3.
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
    # A rank that is killed takes the others with it, but 20 s later: they would wait for it until
    # the time limit. Not at once, or ranks that stop on request would cut each other's exit short.
    # srun does not take over --cpus-per-task from the job by itself since Slurm 22.05.
    srun --mpi="$mpi_plugin" --kill-on-bad-exit=0 --wait=20 \
        --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" hpcfwi run "$config" "$@" &
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

    # Done, a bad input, stopped on request: nothing that another start would change.
    case $status in 0 | 2 | 3) break ;; esac
    [[ $reason == none && $restarts -gt 0 ]] || break
    restarts=$((restarts - 1))
    echo "hpcfwi ended with $status; it starts again from the last checkpoint" \
        "(then $restarts more times at most)."
done

# Where the last tries of this job stopped without having got further: what the ranks said.
stops() {
    local log
    log=$(scontrol show job "$SLURM_JOB_ID" --oneliner | grep -o ' StdErr=[^ ]*')
    grep -o 'goes on from \(epoch [0-9]*\|the last checkpoint\)' "${log# StdErr=}" 2> /dev/null |
        tail -n 2
}

# A 3 that nobody asked this script for is not requeued, nor a try that got no further than the one
# before: both could repeat themselves for ever.
case $status:$reason in
    0:*) echo "Job $SLURM_JOB_ID is done." ;;
    3:time)
        if [[ -n $(stops | uniq -d) ]]; then
            echo "Stopped where the try before did: give the job more time, an epoch takes longer."
        else
            echo "Stopped with a checkpoint; the job goes back to the queue and will continue."
            scontrol requeue "$SLURM_JOB_ID"
        fi
        ;;
    3:*) echo "Stopped with a checkpoint: submit the same command again to continue." ;;
    *) echo "hpcfwi ended with $status; the message is above." ;;
esac
exit "$status"
