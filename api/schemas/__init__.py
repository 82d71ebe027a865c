"""What goes in and out as JSON; one definition for reading, writing and the OpenAPI document."""
