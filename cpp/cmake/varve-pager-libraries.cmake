# What stores of the pager need, where it is installed: compressed_store LZ4, uring_store liburing. Their headers can be
# included only where these are.
find_library(VARVE_LZ4 lz4)
find_library(VARVE_URING uring)
mark_as_advanced(VARVE_LZ4 VARVE_URING)
set(VARVE_PAGER_LIBRARIES ${CMAKE_DL_LIBS})
foreach(library VARVE_LZ4 VARVE_URING)
    if(${library})
        list(APPEND VARVE_PAGER_LIBRARIES ${${library}})
    endif()
endforeach()
