#!/bin/bash
# Invert the Marmousi model on several nodes with GPUs, one rank per GPU. In the checkout's root:
#
#     sbatch slurm/marmousi_nodes.sh
#     sbatch --nodes=8 slurm/marmousi_nodes.sh my_survey.toml --output runs/my_survey
#
# The checkout, the models and the run directory must be on a file system that all nodes share.
# If there are more ranks than shots in an epoch, some ranks are idle: increase inversion.batch with
# the number of nodes. Modules, the environment and the network are set in slurm/environment.sh.

#SBATCH --job-name=marmousi
#SBATCH --nodes=2

# One rank per GPU: set both to the number of GPUs of a node.
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4

# Two minutes before the time limit the script receives USR1: the ranks finish their step and write a
# checkpoint, and the job is requeued to continue. Its output is appended to the same log.
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}" || exit
source "${HPCFWI_ROOT:=$SLURM_SUBMIT_DIR}/slurm/job.sh"
