/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What gdrdrv wants of the interface between NVIDIA's kernel module and modules of others, for a build without NVIDIA's sources. The
 * names and the layout are those of NVIDIA's open kernel modules (595.45, nv-p2p.h); gpu_stand_in.c implements it.
 */
#ifndef WARPROW_NV_P2P_H
#define WARPROW_NV_P2P_H

#include <linux/types.h>

/* Pages stay pinned until they are put back, also when the process that had them allocated is gone. */
#define NVIDIA_P2P_CAP_GET_PAGES_PERSISTENT_API

#define NVIDIA_P2P_PAGE_TABLE_VERSION 0x00020000
#define NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE 0x1
#define NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING 1

enum nvidia_p2p_page_size_type {
	NVIDIA_P2P_PAGE_SIZE_4KB = 0,
	NVIDIA_P2P_PAGE_SIZE_64KB,
	NVIDIA_P2P_PAGE_SIZE_128KB,
};

typedef struct nvidia_p2p_page {
	uint64_t physical_address;
	uint32_t registers[6];
} nvidia_p2p_page_t;

typedef struct nvidia_p2p_page_table {
	uint32_t version;
	uint32_t page_size; /* enum nvidia_p2p_page_size_type */
	struct nvidia_p2p_page **pages;
	uint32_t entries;
	uint8_t *gpu_uuid;
	uint32_t flags;
} nvidia_p2p_page_table_t;

/* All of them return 0, or an error number that is negative. Addresses and lengths are multiples of 64 KiB. */
int nvidia_p2p_get_pages(uint64_t p2p_token, uint32_t va_space, uint64_t virtual_address, uint64_t length,
			 struct nvidia_p2p_page_table **page_table, void (*free_callback)(void *data), void *data);
int nvidia_p2p_put_pages(uint64_t p2p_token, uint32_t va_space, uint64_t virtual_address,
			 struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_get_pages_persistent(uint64_t virtual_address, uint64_t length,
				    struct nvidia_p2p_page_table **page_table, uint32_t flags);
int nvidia_p2p_put_pages_persistent(uint64_t virtual_address, struct nvidia_p2p_page_table *page_table,
				    uint32_t flags);

#endif
