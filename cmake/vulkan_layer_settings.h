// What llama.cpp's Vulkan back end takes from VK_EXT_layer_settings, for headers that are older than it (before 1.3.272: Debian
// 12, Ubuntu 22.04). It asks for the extension only to debug, but names its types in any case. Layouts as in the Vulkan registry.
#pragma once

#if defined(__cplusplus)

#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT : int32_t { eBool32 = 0 };

struct LayerSettingEXT {
    const char *        pLayerName;
    const char *        pSettingName;
    LayerSettingTypeEXT type;
    uint32_t            valueCount;
    const void *        pValues;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings)
        : settingCount(static_cast<uint32_t>(settings.size())), pSettings(settings.data()) {}

    int32_t                 sType = 1000496000;  // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT
    const void *            pNext = nullptr;
    uint32_t                settingCount;
    const LayerSettingEXT * pSettings;
};

}  // namespace vk

#endif
