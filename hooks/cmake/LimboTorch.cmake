# torch's libraries as imported targets: limbo_dep::c10, c10_cuda, torch_cpu, torch_cuda, cudart.
#
# find_package(Torch) is not used: it enables the CUDA language and stops where there is no toolkit.
# Needs what LimboPython.cmake and LimboCuda.cmake set, and that limbo_find_cuda_runtime has found
# what it looks for. Include folders of imported targets are system folders, so that our warnings do
# not look into them. An installed package (limboTorch.cmake) includes this file as well.

function(limbo_import name library)
  if(NOT EXISTS ${library})
    message(FATAL_ERROR "torch in ${LIMBO_PY_torch_dir} lacks ${library}; reinstall it.")
  endif()
  cmake_path(GET library FILENAME soname)
  add_library(limbo_dep::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(limbo_dep::${name} PROPERTIES IMPORTED_LOCATION ${library}
                                                      IMPORTED_SONAME ${soname})
endfunction()

limbo_import(cudart ${LIMBO_CUDA_RUNTIME_LIBRARY})
target_include_directories(limbo_dep::cudart INTERFACE ${LIMBO_CUDA_RUNTIME_INCLUDE_DIRS})

foreach(name c10 c10_cuda torch_cpu torch_cuda)
  limbo_import(${name} ${LIMBO_PY_torch_dir}/lib/lib${name}.so)
endforeach()
target_include_directories(limbo_dep::c10 INTERFACE ${LIMBO_PY_torch_dir}/include
                           ${LIMBO_PY_torch_dir}/include/torch/csrc/api/include)
target_compile_definitions(limbo_dep::c10
                           INTERFACE _GLIBCXX_USE_CXX11_ABI=${LIMBO_PY_torch_cxx11_abi})
target_link_libraries(limbo_dep::torch_cpu INTERFACE limbo_dep::c10)
target_link_libraries(limbo_dep::c10_cuda INTERFACE limbo_dep::c10 limbo_dep::cudart)
target_link_libraries(limbo_dep::torch_cuda INTERFACE limbo_dep::torch_cpu limbo_dep::c10_cuda)
# A program that names no symbol of libtorch_cuda still needs it: its static initialisers are what
# makes CUDA known to torch.
target_link_options(limbo_dep::torch_cuda INTERFACE LINKER:--no-as-needed)
# For programs: where the libraries lie that torch's own libraries need in turn.
foreach(folder IN LISTS LIMBO_PY_cuda_library_dirs)
  target_link_options(limbo_dep::torch_cpu INTERFACE LINKER:-rpath-link,${folder})
endforeach()
