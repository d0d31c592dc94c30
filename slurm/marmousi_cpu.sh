#!/bin/bash
# Invert the Marmousi model on nodes without GPUs. In the checkout's root:
#
#     sbatch slurm/marmousi_cpu.sh
#     sbatch --nodes=4 --cpus-per-task=64 slurm/marmousi_cpu.sh inputs/marmousi.toml --engine cpu
#
# Modules and the environment are set in slurm/environment.sh.

#SBATCH --job-name=marmousi
#SBATCH --nodes=2

# The threads of a rank should share the memory of one socket: use one rank per socket, with the cores
# of that socket. A rank computes one shot per thread. If it has fewer shots than threads, several
# threads share a shot, which is less efficient; ranks without a shot are idle.
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4

# Two minutes before the time limit the script receives USR1: the ranks finish their step and write a
# checkpoint, and the job is requeued to continue. Its output is appended to the same log.
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}" || exit
source "${HPCFWI_ROOT:=$SLURM_SUBMIT_DIR}/slurm/job.sh"
