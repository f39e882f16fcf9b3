// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Stands in for NVIDIA's kernel module, so that the real gdrdrv runs where there is no GPU. "GPU memory" is the BAR of QEMU's
 * ivshmem device: the GPU's address BASE + n is byte n of the BAR.
 *
 * Memory has one owner at a time. Pages that somebody has pinned are refused (EBUSY) until they are put back: as with a GPU, they are
 * nobody else's before. Non-persistent pinning, which ends with the process that allocated the memory, is not played.
 */
#include <linux/bitmap.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "nv-p2p.h"

#define BASE 0x200000000ull
#define PAGE_BYTES 0x10000ull
/* 64 MiB, more than the device has. */
#define MOST_PAGES 1024

static struct pci_dev *device;
static resource_size_t bar;
static unsigned long pages;
static DECLARE_BITMAP(pinned, MOST_PAGES);
static DEFINE_MUTEX(lock);

static void free_table(struct nvidia_p2p_page_table *table)
{
	if (!table)
		return;
	if (table->pages)
		kfree(table->pages[0]);
	kfree(table->pages);
	kfree(table);
}

static struct nvidia_p2p_page_table *make_table(unsigned long first, unsigned long count)
{
	struct nvidia_p2p_page_table *table = kzalloc(sizeof(*table), GFP_KERNEL);
	struct nvidia_p2p_page *entries;
	unsigned long i;

	if (!table)
		return NULL;
	table->pages = kcalloc(count, sizeof(*table->pages), GFP_KERNEL);
	entries = kcalloc(count, sizeof(*entries), GFP_KERNEL);
	if (!table->pages || !entries) {
		kfree(entries);
		free_table(table);
		return NULL;
	}
	for (i = 0; i < count; i++) {
		entries[i].physical_address = bar + (first + i) * PAGE_BYTES;
		table->pages[i] = &entries[i];
	}
	table->version = NVIDIA_P2P_PAGE_TABLE_VERSION;
	table->page_size = NVIDIA_P2P_PAGE_SIZE_64KB;
	table->entries = count;
	return table;
}

int nvidia_p2p_get_pages_persistent(uint64_t virtual_address, uint64_t length,
				    struct nvidia_p2p_page_table **page_table, uint32_t flags)
{
	unsigned long first, count = length / PAGE_BYTES;
	int error = 0;

	if (virtual_address % PAGE_BYTES || length % PAGE_BYTES || !count || virtual_address < BASE)
		return -EINVAL;
	first = (virtual_address - BASE) / PAGE_BYTES;
	if (first >= pages || count > pages - first)
		return -EINVAL;
	mutex_lock(&lock);
	if (find_next_bit(pinned, first + count, first) < first + count) {
		error = -EBUSY;
	} else {
		*page_table = make_table(first, count);
		if (*page_table)
			bitmap_set(pinned, first, count);
		else
			error = -ENOMEM;
	}
	mutex_unlock(&lock);
	return error;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages_persistent);

int nvidia_p2p_put_pages_persistent(uint64_t virtual_address, struct nvidia_p2p_page_table *page_table, uint32_t flags)
{
	mutex_lock(&lock);
	bitmap_clear(pinned, (virtual_address - BASE) / PAGE_BYTES, page_table->entries);
	mutex_unlock(&lock);
	free_table(page_table);
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_put_pages_persistent);

int nvidia_p2p_get_pages(uint64_t p2p_token, uint32_t va_space, uint64_t virtual_address, uint64_t length,
			 struct nvidia_p2p_page_table **page_table, void (*free_callback)(void *data), void *data)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(uint64_t p2p_token, uint32_t va_space, uint64_t virtual_address,
			 struct nvidia_p2p_page_table *page_table)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_put_pages);

int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_free_page_table);

static int __init stand_in_init(void)
{
	int error;

	device = pci_get_device(0x1af4, 0x1110, NULL);
	if (!device)
		return -ENODEV;
	error = pci_enable_device(device);
	if (error) {
		pci_dev_put(device);
		return error;
	}
	bar = pci_resource_start(device, 2);
	pages = min_t(unsigned long, pci_resource_len(device, 2) / PAGE_BYTES, MOST_PAGES);
	pr_info("gpu_stand_in: %lu pages of 64 KiB at %pa\n", pages, &bar);
	return 0;
}

static void __exit stand_in_exit(void)
{
	pci_disable_device(device);
	pci_dev_put(device);
}

module_init(stand_in_init);
module_exit(stand_in_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Stands in for NVIDIA's module below gdrdrv");
