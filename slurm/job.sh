# shellcheck shell=bash
# The common part of the job scripts in this folder: it launches the ranks, and requeues the job before
# its time limit. Do not submit it: submit one of the other scripts, which request the nodes and then
# read this one.
#
# Arguments: [CONFIG] [OPTION...], as for `hpcfwi run`; CONFIG is inputs/marmousi.toml by default.
# HPCFWI_ROOT is the checkout of hpcfwi, by default the folder from which the job was submitted.

# Python must not import from the folder of submission, because other users may write there.
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

# Print the lines of the log in which the ranks reported a stop on request, in all tries of this job.
stops() {
    local log
    log=$(scontrol show job "$SLURM_JOB_ID" --oneliner | grep -o ' StdErr=[^ ]*')
    grep -oE '(after epoch [0-9]+; the same command )?continues from (there|(epoch|shot) [0-9]+|the (last checkpoint|beginning|first shot))' \
        "${log# StdErr=}" 2> /dev/null
}
stops_before=$(stops)

# Slurm sends the signal only to this script (the B in --signal), and the launcher forwards it to all
# ranks. The ranks finish or abandon the step, write a checkpoint and exit with 3. USR1 means that the
# time limit is near, and the job continues later; TERM means that the job was cancelled.
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
    [[ $reason == none ]] || kill -USR1 "$launcher" # the signal came between two starts

    # A signal interrupts `wait`, but the launcher continues.
    wait "$launcher"
    status=$?
    while [[ $interrupted == yes ]]; do
        interrupted=no
        wait "$launcher"
        status=$?
    done
    launcher=

    # torchrun replaces every exit status by 1. If ranks give up an epoch, srun kills those that exit
    # last, and ends with 137.
    case $status in
        1 | 137) [[ $reason == none || $(stops) == "$stops_before" ]] || status=3 ;;
    esac

    # A wrong input (2) or a stop on request (3): starting again would not help.
    end="hpcfwi ended with $status"
    [[ $status != 137 ]] ||
        end+=" (killed, probably for memory: 'hpcfwi plan' says how much a rank needs)"
    case $status in 2 | 3) break ;; esac

    # The run directory shows whether all epochs are done. The exit status of the launcher does not:
    # srun also exits with 0 if it could not launch anything.
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
        echo "$end as time ran out; the job continues from the last checkpoint." >&2
        status=3
        break
    fi
    restarts=$((restarts - 1))
    echo "$end; it starts again from the last checkpoint (then $restarts more times at most)."
done

# The job is not requeued after a 3 without a signal to this script, or after a try without progress:
# both could repeat forever.
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
