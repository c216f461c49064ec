# What a wheel has beside the package, in site-packages itself: what LIMBO_ENABLE=1 needs.
set(limbo_shim ${CMAKE_CURRENT_LIST_DIR}/../python_shim)
install(FILES ${limbo_shim}/torch_limbo_enable.pth ${limbo_shim}/torch_limbo_enable.py
        DESTINATION ${SKBUILD_PLATLIB_DIR})
