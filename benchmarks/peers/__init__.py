"""What the bridge is compared with, in the same run on the same machine."""
