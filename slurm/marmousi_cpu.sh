#!/bin/bash
# Invert the Marmousi model on nodes without GPUs. From the checkout's root:
#
#     sbatch slurm/marmousi_cpu.sh
#     sbatch --nodes=4 --cpus-per-task=64 slurm/marmousi_cpu.sh inputs/marmousi.toml --engine cpu
#
# Modules and the environment are in slurm/environment.sh.

#SBATCH --job-name=marmousi
#SBATCH --nodes=2

# A rank computes one shot a thread, and its threads should share one socket's memory: one rank a
# socket, with that socket's cores. Ranks times cores should not exceed the shots of a step.
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4

# Two minutes before the time limit the script gets USR1: the ranks finish their step and write a
# checkpoint, and the job goes back to the queue to continue. The log is continued, too.
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}" || exit
source "${HPCFWI_ROOT:=$SLURM_SUBMIT_DIR}/slurm/job.sh"
