# Device code: compiled by nvcc 13 to machine code for Hopper, and to PTX for other GPUs, which the driver compiles.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  # 90a: includes Hopper's wgmma and TMA instructions. PTX for Ampere: plain kernels for all GPUs since Ampere.
  set(CMAKE_CUDA_ARCHITECTURES 90a-real 80-virtual)
endif()
enable_language(CUDA)
# CMake 3.25 has no C++20 flag for this compiler.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
endif()
# Debian 12's CMake sets a property of this target, whose library CUDA 13 does not have.
if(NOT TARGET CUDA::nvToolsExt)
  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
endif()
find_package(CUDAToolkit 13 REQUIRED)
