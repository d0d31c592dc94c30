#!/bin/bash
# Invert the Marmousi model on several nodes of GPUs, one rank a GPU. From the checkout's root:
#
#     sbatch slurm/marmousi_nodes.sh
#     sbatch --nodes=8 slurm/marmousi_nodes.sh my_survey.toml --output runs/my_survey
#
# The checkout, the models and the run directory must be on a file system that all nodes share.
# More ranks than shots in a step leave some of them idle: raise inversion.batch with the nodes.
# Modules, the environment and the network are in slurm/environment.sh.

#SBATCH --job-name=marmousi
#SBATCH --nodes=2

# As many ranks a node as it has GPUs: change both for your machines.
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4

# Two minutes before the time limit the script gets USR1: the ranks finish their step and write a
# checkpoint, and the job goes back to the queue to continue. The log is continued, too.
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}" || exit
source "${HPCFWI_ROOT:=$SLURM_SUBMIT_DIR}/slurm/job.sh"
