"""Fixed measurements that are run as one."""
