#!/bin/bash
# Invert the Marmousi model on one node with four GPUs, one rank per GPU. In the checkout's root:
#
#     sbatch slurm/marmousi_4gpu.sh
#     sbatch slurm/marmousi_4gpu.sh inputs/small.toml --output runs/first --set inversion.epochs=5
#
# Options of sbatch come before the script (sbatch --account=x --partition=y slurm/...).
# Modules and the environment are set in slurm/environment.sh.

#SBATCH --job-name=marmousi
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4

# Every rank sees all four GPUs and uses one, so that the GPUs can communicate directly.
# The cores read and prefetch the data.
#SBATCH --cpus-per-task=4

# Two minutes before the time limit the script receives USR1: the ranks finish their step and write a
# checkpoint, and the job is requeued to continue. Its output is appended to the same log.
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}" || exit
source "${HPCFWI_ROOT:=$SLURM_SUBMIT_DIR}/slurm/job.sh"
