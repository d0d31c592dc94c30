# shellcheck shell=bash
# What a job needs around it: edit this file for your cluster; all job scripts read it.
# It runs on the first node of the allocation, in the folder that the job was submitted from.

# 1. Modules. Name those that hpcfwi was set up with, for instance:
# module purge
# module load python/3.11 openmpi/4.1 hdf5/1.14-mpi cuda/12

# 2. Python: the environment that `make setup` made. An empty entry of PYTHONPATH, as modules of other
#    software often leave one, would stand for the folder that the job was submitted from.
export PATH=$HPCFWI_ROOT/.venv/bin:$PATH
[[ -z ${PYTHONPATH:-} ]] || PYTHONPATH=$(tr -s : <<< ":$PYTHONPATH:" | sed 's/^:\|:$//g')

# 3. Models, where the compute nodes see them. Compute nodes seldom reach the internet: run
#    `hpcfwi dataset marmousi2` once on a login node, or name a folder that has the files.
# export HPCFWI_DATA=/path/to/models

# 4. How srun tells the ranks of each other. It must speak the MPI library's protocol, or each task
#    would be an inversion of its own. `srun --mpi=list` shows what your Slurm has.
mpi_library=$(python -P -c '
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.get_vendor()[0])')
case $mpi_library in
    "Open MPI") mpi_plugin=pmix ;;
    *) mpi_plugin=pmi2 ;; # MPICH and its relatives: Intel MPI, Cray MPICH, MVAPICH
esac

# 5. The network, where the ranks cannot find each other over the default one, for instance:
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0

# 6. What starts the ranks: the words in front of `hpcfwi run`. It must pass SIGUSR1 on to them.
#    srun: a rank that is killed takes the others with it, but 20 s later: they would wait for it
#    until the time limit. Not at once, or ranks that stop on request would cut each other's exit
#    short. It does not take over --cpus-per-task from the job by itself since Slurm 22.05.
launch=(srun --mpi="$mpi_plugin" --kill-on-bad-exit=0 --wait=20
    --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")

#    The mpirun of the library that mpi4py uses, which finds the hosts of the job by itself:
# launch=(mpirun --bind-to none)

#    torchrun, once a node, where there is no MPI:
# launch=(srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1
#     --cpus-per-task=$((SLURM_NTASKS_PER_NODE * ${SLURM_CPUS_PER_TASK:-1}))
#     torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="$SLURM_NTASKS_PER_NODE"
#     --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"
#     --rdzv-endpoint="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
#     --signals-to-handle=SIGTERM,SIGINT,SIGUSR1 --no-python)
