# shellcheck shell=bash
# The environment of a job: edit this file for your cluster. All job scripts read it.
# It runs on the first node of the allocation, in the folder from which the job was submitted.

# 1. Modules. Load those with which hpcfwi was set up, for instance:
# module purge
# module load python/3.11 openmpi/4.1 hdf5/1.14-mpi cuda/12

# 2. Python: the environment that `make setup` created. Empty entries of PYTHONPATH, which modules of
#    other software often leave, are removed, because they mean the current folder.
export PATH=$HPCFWI_ROOT/.venv/bin:$PATH
[[ -z ${PYTHONPATH:-} ]] || PYTHONPATH=$(tr -s : <<< ":$PYTHONPATH:" | sed 's/^:\|:$//g')

# 3. Models, in a folder that the compute nodes can read. Compute nodes often have no access to the
#    internet: run `hpcfwi dataset marmousi2` once on a login node, or name a folder with the files.
# export HPCFWI_DATA=/path/to/models

# 4. The plugin with which srun connects the ranks. It must match the MPI library; otherwise each task
#    would run a separate inversion. `srun --mpi=list` lists the plugins of your Slurm.
mpi_library=$(python -P -c '
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.get_vendor()[0])')
case $mpi_library in
    "Open MPI") mpi_plugin=pmix ;;
    *) mpi_plugin=pmi2 ;; # MPICH and libraries derived from it: Intel MPI, Cray MPICH, MVAPICH
esac

# 5. The network interface, if the ranks cannot connect over the default one, for instance:
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0

# 6. The launcher: the words in front of `hpcfwi run`. It must forward SIGUSR1 to the ranks.
#    srun: if a rank is killed, srun ends the other ranks after 20 s, which would otherwise wait for it
#    until the time limit. It must not end them at once, because ranks that stop on request would then
#    be killed before they have exited. Since Slurm 22.05, srun does not take --cpus-per-task from the
#    job.
launch=(srun --mpi="$mpi_plugin" --kill-on-bad-exit=0 --wait=20
    --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")

#    mpirun of the library that mpi4py uses; it detects the hosts of the job:
# launch=(mpirun --bind-to none)

#    torchrun, once per node, for machines without MPI:
# launch=(srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1
#     --cpus-per-task=$((SLURM_NTASKS_PER_NODE * ${SLURM_CPUS_PER_TASK:-1}))
#     torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="$SLURM_NTASKS_PER_NODE"
#     --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"
#     --rdzv-endpoint="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
#     --signals-to-handle=SIGTERM,SIGINT,SIGUSR1 --no-python)
